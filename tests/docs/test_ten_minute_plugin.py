"""The README's plugin is the one in examples/, and it works: found, typed, conformant, serving, and worth it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm import LLM, SamplingParams
from sites import run_pymllm

FILES = {
    "pyproject.toml": "toml",
    "pymllm_cache_lifo/plugin.py": "python",
    "pymllm_cache_lifo/policy.py": "python",
    "test_lifo.py": "python",
}


@pytest.fixture
def example(root: Path) -> Path:
    return root / "examples" / "pymllm-cache-lifo"


@pytest.mark.parametrize("name", FILES)
def test_the_readme_shows_the_file(name: str, example: Path, root: Path, blocks: Callable[..., list[str]]) -> None:
    text = (example / name).read_text()
    assert text in blocks("README.md", FILES[name])
    assert f"\n`{name}`: " in (root / "README.md").read_text().partition(text)[0]


def test_the_folder_holds_nothing_that_the_readme_hides(example: Path) -> None:
    found = {path.relative_to(example).as_posix() for path in example.rglob("*") if path.suffix in (".py", ".toml")}
    assert found == {*FILES, "pymllm_cache_lifo/__init__.py"}


def test_it_passes_the_conformance_kit(example: Path, lifo_site: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(example), str(example / "test_lifo.py")]
    environment = {**os.environ, "PYTHONPATH": str(lifo_site)}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_listed_and_composed_by_name(lifo_site: Path, root: Path) -> None:
    listed = run_pymllm("plugins", "--check", sites=(lifo_site,))
    assert any(
        line.split() == ["cache", "lifo", "pymllm-cache-lifo", "0.1.0", "ok"] for line in listed.stdout.splitlines()
    )
    composed = run_pymllm("config", "configs/quickstart.yaml", "cache=lifo", sites=(lifo_site,), cwd=root)
    assert "cache:\n  plugin: lifo\n  page_size: 16\nengine:" in composed.stdout


def test_greedy_answers_are_those_of_the_baseline(lifo_site: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(lifo_site))
    prompts = [[*range(60), 60 + last] for last in range(3)]
    answers = {}
    for policy in ("chunk", "lifo"):
        with LLM(tiny, {"cache.plugin": policy, "engine.max_total_tokens": 2048, "model.dtype": "float32"}) as llm:
            outs = [llm.generate(prompt, SamplingParams(temperature=0, max_tokens=12))[0] for prompt in prompts]
            answers[policy] = [out.outputs[0].token_ids for out in outs]
            assert [out.num_cached_tokens for out in outs] == ([0, 48, 48] if policy == "lifo" else [0, 0, 0])
    assert answers["lifo"] == answers["chunk"]


def test_the_comparison_prints_what_the_readme_shows(
    root: Path, lifo_site: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(lifo_site))
    spec = importlib.util.spec_from_file_location("compare_caches", root / "examples" / "compare_caches.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(str(tiny), "chunk", "radix", "lifo")
    printed = capsys.readouterr().out
    assert printed in (root / "README.md").read_text()
    # By hand: 8 of the 10 prompts stay; in 3 of 4 rounds each saves 7 of its 8 pages (its last token is computed).
    assert f"{8 * 3 * 7 * 16} of {10 * 4 * 128}" in printed
