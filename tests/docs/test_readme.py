"""The README's commands, requests and trees are real."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pymllm.cli import COMMANDS, main
from sites import run_pymllm

Blocks = Callable[..., list[str]]


def test_the_command_table_lists_every_command(rows: Callable[[str], list[list[str]]]) -> None:
    listed = [match[1] for row in rows("README.md") if (match := re.match(r"`pymllm (\w+)", row[0]))]
    assert sorted(listed) == sorted(COMMANDS)


def test_the_curl_example_is_answered(blocks: Blocks, server: str) -> None:
    [command] = [block for block in blocks("README.md", "") if block.startswith("curl")]
    words = shlex.split(command)
    header, value = words[words.index("-H") + 1].split(": ")
    url = words[1].replace("http://localhost:8000", server)
    answer = httpx.post(url, content=words[words.index("-d") + 1], headers={header: value}, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"


def test_the_sdk_example_streams(blocks: Blocks, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    [code] = [block for block in blocks("README.md", "python") if "OpenAI" in block]
    code = code.replace("http://localhost:8000", server).replace("stream=True", "stream=True, max_tokens=8")
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_the_shown_refusals_are_what_is_printed(
    blocks: Blocks, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    [block] = [block for block in blocks("README.md", "") if block.startswith("$ pymllm config")]
    shown = re.findall(r"^\$ pymllm (.*)\n(pymllm: .*)$", block, re.MULTILINE)
    assert len(shown) == 3
    for command, line in shown:
        assert main(shlex.split(command)) == 2
        printed = capsys.readouterr().err.strip()
        # More plugins may be installed than a user has who follows the README.
        assert re.sub("Installed: .* [(]see", "Installed: (see", printed) == re.sub(
            "Installed: .* [(]see", "Installed: (see", line
        )


def test_the_tree_shows_what_is_there(blocks: Blocks, root: Path) -> None:
    [tree] = [block for block in blocks("README.md", "") if block.startswith("pyproject.toml")]
    folder, shown = root, set()
    for line in tree.splitlines():
        paths = line[:26].split()
        if not line.startswith(" "):
            folder = root / paths[0] if paths[0].endswith("/") else root
        within = folder if line.startswith(" ") else root
        missing = [path for path in paths if not (within / path).exists()]
        assert not missing
        shown |= {within / path for path in paths}
    core = root / "core" / "pymllm"
    packages = {place for place in core.iterdir() if (place / "__init__.py").is_file()}
    assert packages <= shown
    assert {place.parent for place in root.glob("plugins/*/*/pyproject.toml")} <= shown


PAGES = sorted(
    path.relative_to(Path(__file__).parents[2]).as_posix()
    for pattern in ("*.md", "docs/*.md", "plugins/*/*/README.md", "tests/third_party/*/README.md")
    for path in Path(__file__).parents[2].glob(pattern)
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str, root: Path) -> None:
    text = (root / page).read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        place = (root / page).parent / path if path else root / page
        assert place.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, target


def test_the_plugin_listing_runs_as_a_command_of_its_own() -> None:
    listed = run_pymllm("plugins", "--json")
    assert listed.returncode == 0
    names = {(plugin["kind"], plugin["name"]) for plugin in json.loads(listed.stdout)}
    assert {("model", "llama"), ("model", "qwen3"), ("attention", "torch"), ("cache", "radix")} <= names
