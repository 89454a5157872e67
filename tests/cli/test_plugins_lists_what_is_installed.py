"""``pymllm plugins`` lists our own plugins, aligned, and as JSON."""

from __future__ import annotations

import json

from sites import run_pymllm, run_python

OWN = [
    ("model", "llama", "pymllm-model-llama"),
    ("model", "qwen3", "pymllm-model-qwen3"),
    ("attention", "torch", "pymllm-attention-torch"),
    ("cache", "chunk", "pymllm-cache-chunk"),
    ("cache", "radix", "pymllm-cache-radix"),
]


def test_all_of_ours_pass_the_check() -> None:
    listed = json.loads(run_pymllm("plugins", "--check", "--json").stdout)
    ours = {(record["kind"], record["name"], record["distribution"]): record for record in listed}
    for key in OWN:
        assert (ours[key]["state"], ours[key]["cause"]) == ("ok", "")
        assert ours[key]["version"]
        assert ours[key]["summary"]


def test_the_table_is_aligned() -> None:
    done = run_pymllm("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    title, *lines = done.stdout.splitlines()
    assert title.split() == ["KIND", "NAME", "DISTRIBUTION", "VERSION", "STATE"]
    starts = [title.index(word) for word in title.split()]
    rows = [tuple(line[a:b].strip() for a, b in zip(starts, [*starts[1:], None])) for line in lines]
    assert {(kind, name, distribution) for kind, name, distribution, _, _ in rows} >= set(OWN)
    assert all(line == line.rstrip() for line in lines)


def test_it_imports_neither_plugins_nor_torch() -> None:
    code = (
        "import sys, pymllm.cli; pymllm.cli.main(['plugins', '--json'])\n"
        "print([m for m in sys.modules if m.startswith(('pymllm_', 'torch', 'transformers', 'fastapi', 'uvicorn'))])"
    )
    assert run_python(code).stdout.splitlines()[-1] == "[]"
