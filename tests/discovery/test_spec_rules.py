"""A hook's answer is checked when the plugin is loaded, so that a wrong one is blamed on its distribution."""

from __future__ import annotations

import pytest

from pymllm.errors import PluginError
from pymllm.registry import Registry
from sites import Site

HEAD = """
from dataclasses import dataclass
from pymllm.plugin import *
from pymllm.plugin import hookimpl
"""

CASES = {
    "no hook": ("cache", "x = 1", "does not implement the hook pymllm_cache"),
    "no marker": (
        "cache",
        "def pymllm_cache():\n    return CachePolicySpec(factory='a:b')",
        "has a pymllm_cache that is not marked with @hookimpl",
    ),
    "hook of another kind": (
        "cache",
        "@hookimpl\ndef pymllm_model():\n    return ModelSpec(factory='a:b')",
        "implements pymllm_model, but its entry point 'cache.mine' needs pymllm_cache",
    ),
    "hook with arguments": (
        "cache",
        "@hookimpl\ndef pymllm_cache(config):\n    return CachePolicySpec(factory='a:b')",
        "has a hook of the wrong form",
    ),
    "hook raises": ("cache", "@hookimpl\ndef pymllm_cache():\n    return 1 / 0", "ZeroDivisionError"),
    "exits": ("cache", "raise SystemExit(0)", "SystemExit: 0"),
    "syntax error": ("cache", "def", "SyntaxError"),
    "returns nothing": ("cache", "@hookimpl\ndef pymllm_cache():\n    pass", "but returned nothing"),
    "spec of another kind": (
        "model",
        "@hookimpl\ndef pymllm_model():\n    return QuantSpec(factory='a:b')",
        "must return one ModelSpec from pymllm_model, but returned a QuantSpec",
    ),
    "factory without attribute": (
        "cache",
        "@hookimpl\ndef pymllm_cache():\n    return CachePolicySpec(factory='package.module')",
        "factory='package.module', which is not of the form 'package.module:Attribute'",
    ),
    "attention without probe": (
        "attention",
        "@hookimpl\ndef pymllm_attention():\n    return AttentionSpec(factory='a:b')",
        "probe='', which is not of the form",
    ),
    "processor without attribute": (
        "model",
        "@hookimpl\ndef pymllm_model():\n    return ModelSpec(factory='a:b', processor='package.module')",
        "processor='package.module', which is not of the form 'package.module:Attribute'",
    ),
    "evaluation without attribute": (
        "model",
        "@hookimpl\ndef pymllm_model():\n    return ModelSpec(factory='a:b', evaluation='package.module')",
        "evaluation='package.module', which is not of the form 'package.module:Attribute'",
    ),
    "architectures as text": (
        "model",
        "@hookimpl\ndef pymllm_model():\n    return ModelSpec(factory='a:b', architectures='LlamaForCausalLM')",
        "architectures='LlamaForCausalLM', which is not a tuple of strings",
    ),
    "options of no base": (
        "cache",
        "@dataclass\nclass Mine:\n    a: int = 1\n"
        "@hookimpl\ndef pymllm_cache():\n    return CachePolicySpec(factory='a:b', config=Mine)",
        "is not a subclass of pymllm.plugin.CacheOptions",
    ),
    "options not decorated": (
        "cache",
        "class Mine(CacheOptions):\n    a: int = 1\n"
        "@hookimpl\ndef pymllm_cache():\n    return CachePolicySpec(factory='a:b', config=Mine)",
        "has options Mine that are not decorated with @dataclass",
    ),
    "option of the core's": (
        "model",
        "@dataclass\nclass Mine(ModelOptions):\n    path: str = ''\n"
        "@hookimpl\ndef pymllm_model():\n    return ModelSpec(factory='a:b', config=Mine)",
        "has an option 'path', which is a key of the core's 'model' section",
    ),
    "option without default": (
        "quant",
        "@dataclass\nclass Mine(QuantOptions):\n    bits: int\n"
        "@hookimpl\ndef pymllm_quant():\n    return QuantSpec(factory='a:b', config=Mine)",
        "has an option 'bits' without a default",
    ),
    "option of an impossible type": (
        "quant",
        "@dataclass\nclass Mine(QuantOptions):\n    bits: object() = 1\n"
        "@hookimpl\ndef pymllm_quant():\n    return QuantSpec(factory='a:b', config=Mine)",
        "has options Mine that cannot stand in a configuration",
    ),
}


@pytest.mark.parametrize("kind, body, cause", CASES.values(), ids=CASES.keys())
def test_wrong_answer(site: Site, kind: str, body: str, cause: str) -> None:
    distribution = site.add_plugin(f"{kind}.mine", "my_plugin", HEAD + body)
    with pytest.raises(PluginError) as caught:
        Registry([str(site.path)]).load(kind, "mine")
    message = str(caught.value)
    assert message.startswith(f"{kind} plugin 'mine' ({distribution} 0.1.0) ")
    assert cause in message
    assert "\n" not in message


def test_one_module_may_serve_two_kinds(site: Site) -> None:
    (site.path / "both_kinds.py").write_text(
        HEAD
        + "@hookimpl\ndef pymllm_model():\n    return ModelSpec(factory='a:b', architectures=('A',))\n"
        + "@hookimpl\ndef pymllm_quant():\n    return QuantSpec(factory='c:d', formats=('awq',))\n"
    )
    points = [("pymllm.v1", "model.two", "both_kinds"), ("pymllm.v1", "quant.two", "both_kinds")]
    site.add_metadata("both-kinds", points)
    registry = Registry([str(site.path)])
    assert (registry.load("model", "two").factory, registry.load("quant", "two").factory) == ("a:b", "c:d")
