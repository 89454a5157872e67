"""With every broken example installed, whatever does not select one works and prints no complaint."""

from __future__ import annotations

import json
from pathlib import Path

from sites import EXAMPLES, run_pymllm

STATES = {
    "pymllm-attention-futuristic": ("outdated", "API 2"),
    "pymllm-attention-heavy-fails": ("ok", ""),
    "pymllm-attention-outdated": ("outdated", "API 0"),
    "pymllm-cache-explodes": ("broken", "flux capacitor"),
    "pymllm-cache-twin-a": ("conflict", "pymllm-cache-twin-b"),
    "pymllm-cache-twin-b": ("conflict", "pymllm-cache-twin-a"),
    "pymllm-cache-wrong-return": ("broken", "CachePolicySpec"),
    "pymllm-model-misspelled": ("broken", "pymllm_modle"),
    "pymllm-quant-lonely": ("broken", "pymllm_lonely_kernels"),
}


def states(site: Path, *words: str, status: int) -> dict[str, tuple[str, str]]:
    done = run_pymllm("plugins", "--json", *words, sites=(site,))
    assert (done.returncode, done.stderr) == (status, "")
    return {record["distribution"]: (record["state"], record["cause"]) for record in json.loads(done.stdout)}


def test_every_example_has_an_expectation() -> None:
    assert set(STATES) == set(EXAMPLES)


def test_help_and_configurations_do_not_notice_them(broken_site: Path) -> None:
    for words in (("--help",), ("config", "model.path=anywhere", "cache={plugin: radix, eviction: lfu}")):
        done = run_pymllm(*words, sites=(broken_site,))
        assert (done.returncode, done.stderr) == (0, "")


def test_the_list_without_check_imports_none_of_them(broken_site: Path) -> None:
    listed = states(broken_site, status=0)
    for name, (state, _) in STATES.items():
        assert listed[name][0] == ("ok" if state == "broken" else state), name


def test_the_check_names_the_cause_of_each_and_clears_the_others(broken_site: Path) -> None:
    listed = states(broken_site, "--check", status=1)
    for name, (state, cause) in STATES.items():
        assert listed[name][0] == state, name
        assert cause in listed[name][1], name
    assert listed["pymllm-cache-radix"] == ("ok", "")


def test_the_check_prints_one_line_a_plugin(broken_site: Path) -> None:
    done = run_pymllm("plugins", "--check", sites=(broken_site,))
    title, *lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    column = title.index("STATE")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines)
    assert any("pymllm-cache-explodes" in line and "broken: fails to import: RuntimeError" in line for line in lines)
