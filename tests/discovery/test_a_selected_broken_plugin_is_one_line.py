"""A broken plugin that is selected ends the command with status 2 and one line: who, why, and the cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from sites import run_pymllm

CASES = [
    (
        "cache=explodes",
        "cache plugin 'explodes' (pymllm-cache-explodes 0.1.0)",
        "fails to import: RuntimeError: the flux capacitor is not charged",
        "pip uninstall pymllm-cache-explodes",
    ),
    (
        "model.plugin=misspelled",
        "model plugin 'misspelled' (pymllm-model-misspelled 0.1.0)",
        "implements 'pymllm_modle', which is no hook of pymllm",
        "Did you mean 'pymllm_model'?",
    ),
    (
        "quant=lonely",
        "quant plugin 'lonely' (pymllm-quant-lonely 0.1.0)",
        "needs the package 'pymllm_lonely_kernels', which is not installed",
        "pip install pymllm",
    ),
    (
        "attention=outdated",
        "attention plugin 'outdated' (pymllm-attention-outdated 0.1.0)",
        "is written for plugin API 0, but this pymllm speaks API 1",
        "pip install -U pymllm-attention-outdated",
    ),
    (
        "attention=futuristic",
        "attention plugin 'futuristic' (pymllm-attention-futuristic 0.1.0)",
        "is written for plugin API 2, but this pymllm speaks API 1",
        "upgrade: pip install -U pymllm",
    ),
    ("cache=twin", "pymllm-cache-twin-a 0.1.0", "pymllm-cache-twin-b 0.1.0", "pip uninstall pymllm-cache-twin-b"),
    (
        "cache=wrong-return",
        "cache plugin 'wrong-return' (pymllm-cache-wrong-return 0.1.0)",
        "must return one CachePolicySpec from pymllm_cache, but returned a dict",
        "pip uninstall pymllm-cache-wrong-return",
    ),
    ("cache=explods", "override 'cache=explods'", "no cache plugin is named 'explods'", "Did you mean 'explodes'?"),
    (
        "attention=radix",
        "override 'attention=radix'",
        "no attention plugin is named 'radix'",
        "There is a cache plugin",
    ),
]


@pytest.mark.parametrize("override, who, cause, cure", CASES, ids=[case[0] for case in CASES])
def test_selecting_it(broken_site: Path, override: str, who: str, cause: str, cure: str) -> None:
    done = run_pymllm("config", "model.path=anywhere", override, sites=(broken_site,))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("pymllm: ")
    for part in (who, cause, cure):
        assert part in done.stderr


def test_the_file_is_named_when_the_file_selects_it(broken_site: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("model: {path: anywhere}\ncache: explodes\n")
    done = run_pymllm("config", "mine.yaml", sites=(broken_site,), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "pymllm: mine.yaml: cache.plugin: cache plugin 'explodes' (pymllm-cache-explodes 0.1.0)"
    )
