"""To select, the light modules of one kind are imported, each guarded."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.registry import Registry
from sites import EXAMPLES, Site, run_python


def test_the_broken_ones_are_set_apart(site: Site) -> None:
    for name in EXAMPLES:
        site.add_example(name)
    usable, problems = Registry().candidates("cache")
    assert {"radix", "chunk"} <= {info.name for info, _ in usable}
    assert {(problem.info.distribution, problem.state) for problem in problems} == {
        ("pymllm-cache-explodes", "broken"),
        ("pymllm-cache-twin-a", "conflict"),
        ("pymllm-cache-twin-b", "conflict"),
        ("pymllm-cache-wrong-return", "broken"),
    }
    assert all(problem.info.distribution in str(problem) for problem in problems)


def test_other_kinds_are_not_imported(broken_site: Path) -> None:
    code = (
        "import sys; from pymllm.registry import Registry; Registry().candidates('quant'); "
        "print([m for m in sys.modules if m.startswith(('pymllm_cache', 'pymllm_model', 'pymllm_attention'))])"
    )
    assert run_python(code, sites=(broken_site,)).stdout == "[]\n"


@pytest.mark.parametrize(
    "kind, name, offer",
    [
        ("model", "llama", {"architectures": ("LlamaForCausalLM", "Qwen2ForCausalLM")}),
        ("model", "qwen3", {"architectures": ("Qwen3ForCausalLM",)}),
        ("attention", "torch", {"priority": 0}),
        ("cache", "radix", {}),
        ("cache", "chunk", {}),
    ],
)
def test_our_own_plugins_offer(kind: str, name: str, offer: dict[str, object]) -> None:
    spec = Registry().load(kind, name)
    assert {key: getattr(spec, key) for key in offer} == offer


def test_our_own_light_modules_are_light() -> None:
    code = (
        "import sys; from pymllm.registry import Registry, KINDS; r = Registry(); [r.candidates(k) for k in KINDS]; "
        "print([m for m in ('torch', 'triton', 'transformers', 'fastapi', 'uvicorn') if m in sys.modules])"
    )
    assert run_python(code).stdout == "[]\n"
