"""Plugins are chosen by name, or by what the checkpoint and the machine need; the reason or the refusal is one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines import start
from pymllm.compose import compose
from pymllm.engine.choose import choose_attention, choose_model, choose_named, choose_quant
from pymllm.errors import ConfigError, PluginError
from pymllm.interfaces import AttentionContext, KVDtype, KVGroup
from pymllm.registry import Registry
from sites import Site

ATTENTION = """
from dataclasses import dataclass
from pymllm.plugin import AttentionOptions, AttentionSpec, hookimpl

@dataclass
class Options(AttentionOptions):
    level: int = 3

@hookimpl
def pymllm_attention():
    name = "{module}_impl"
    return AttentionSpec(config=Options, factory=name + ":Backend", priority={priority}, probe=name + ":probe")
"""

BACKEND = """
import torch
from pymllm.interfaces.attention import AttentionCapabilities

class Backend:
    capabilities = AttentionCapabilities(
        devices=frozenset({{"cpu"}}), dtypes=frozenset({{torch.float32}}), page_sizes={page_sizes}
    )

def probe(device):
    {probe}
"""

QUANT = """
from pymllm.plugin import QuantSpec, hookimpl

@hookimpl
def pymllm_quant():
    return QuantSpec(factory="json:loads", formats={formats})
"""

MODEL = """
from pymllm.plugin import ModelSpec, hookimpl

@hookimpl
def pymllm_model():
    return ModelSpec(factory="json:loads", architectures=("LlamaForCausalLM", "DreamForCausalLM"))
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site folder on sys.path; the modules imported from it are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Site(tmp_path)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def add_attention(
    site: Site, name: str, priority: int, *, page_sizes: str = "None", probe: str = "return None", source: str = BACKEND
) -> None:
    site.add_plugin(f"attention.{name}", f"att_{name}", ATTENTION.format(module=f"att_{name}", priority=priority))
    (site.path / f"att_{name}_impl.py").write_text(source.format(page_sizes=page_sizes, probe=probe))


def attend(plugin: str = "auto", kv_dtype: str = "auto", dtype: torch.dtype = torch.float32) -> Any:
    config = compose(None, {"model.path": "x", "attention.plugin": plugin, "attention.kv_dtype": kv_dtype})
    group = KVGroup("kv", layers=1, kv_heads=1, head_dim=8)
    context = AttentionContext(torch.device("cpu"), dtype, 16, {"kv": group}, config.attention.kv_dtype)
    return choose_attention(Registry(), config.attention, context)


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(PluginError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def checkpoint(**config: Any) -> Any:
    return SimpleNamespace(name="the-model", config=config, quantization_config=config.get("quantization_config"))


def model_section(plugin: str = "auto") -> Any:
    return compose(None, {"model.path": "x", "model.plugin": plugin}).model


def quant_section(plugin: str = "auto") -> Any:
    return compose(None, {"model.path": "x", "quant.plugin": plugin}).quant


def test_auto_takes_the_highest_priority_that_works(site: Site) -> None:
    add_attention(site, "slow", 500)
    add_attention(site, "fast", 900)
    chosen = attend()
    assert (chosen.choice.kind, chosen.choice.name, chosen.choice.distribution) == ("attention", "fast", "att-fast")
    assert chosen.choice.reason == "highest priority that runs on cpu and covers the model"
    assert (chosen.options.plugin, chosen.options.level) == ("auto", 3)


def test_auto_passes_over_what_does_not_work_and_says_why(site: Site) -> None:
    add_attention(site, "a", 900, page_sizes="frozenset([32, 64])")
    add_attention(site, "b", 800, probe="return 'there is no such chip'")
    add_attention(site, "c", 700, probe="raise OSError('libfoo.so is missing')")
    add_attention(site, "d", 600, source="Backend = len\ndef probe(device): return None")
    add_attention(site, "e", 550, source="import no_such_module")
    add_attention(site, "good", 500)
    chosen = attend()
    assert chosen.choice.name == "good"
    reason = chosen.choice.reason
    for expected in (
        "a: does not support cache.page_size 16 (it can: 32, 64)",
        "b: there is no such chip",
        "c: its probe failed: OSError: libfoo.so is missing",
        "d: declares no AttentionCapabilities",
        "e: attention plugin 'e' (att-e 0.1.0) needs the package 'no_such_module', which is not installed",
    ):
        assert expected in reason


def test_a_named_backend_that_cannot_is_refused_with_the_reason(site: Site) -> None:
    add_attention(site, "a", 900, page_sizes="frozenset([32, 64])")
    add_attention(site, "b", 800, probe="return 'there is no such chip'")
    assert refused(attend, "a") == (
        "attention plugin 'a' cannot serve this model here: does not support cache.page_size 16 (it can: 32, 64); "
        "set attention.plugin to another, or to auto"
    )
    assert "'b' cannot serve this model here: there is no such chip;" in refused(attend, "b")


def test_auto_takes_a_backend_that_can_keep_the_cache_as_asked(site: Site) -> None:
    add_attention(site, "plain", 900)
    assert attend().choice.name == "plain"
    chosen = attend(kv_dtype="fp8")
    assert chosen.choice.name == "torch"
    assert chosen.options.kv_dtype is KVDtype.fp8
    refusal = "does not support attention.kv_dtype: fp8 with activations in torch.float32 (it can: auto)"
    assert f"plain: {refusal}" in chosen.choice.reason
    assert f"'plain' cannot serve this model here: {refusal};" in refused(attend, "plain", "fp8")


def test_a_cache_that_nothing_can_keep_so_is_one_line(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymllm_attention_torch.backend import TorchAttention

    less = replace(TorchAttention.capabilities, kv_dtypes=frozenset({KVDtype.auto, KVDtype.fp8}))
    monkeypatch.setattr(TorchAttention, "capabilities", less)
    message = refused(attend, "auto", "int4")
    assert message.startswith("no attention backend can serve this model here: ")
    assert (
        "torch: does not support attention.kv_dtype: int4 with activations in torch.float32 (it can: auto, fp8)"
        in message
    )


def test_bf16_is_auto_for_bfloat16_activations(site: Site) -> None:
    source = BACKEND.replace("torch.float32", "torch.bfloat16, torch.float16")
    add_attention(site, "plain", 900, source=source)
    assert attend("plain", "bf16", torch.bfloat16).choice.name == "plain"
    assert "attention.kv_dtype: bf16 with activations in torch.float16" in refused(
        attend, "plain", "bf16", torch.float16
    )


def test_no_backend_at_all_lists_every_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = AttentionContext(torch.device("cpu"), torch.float32, 16, {})
    section = compose(None, {"model.path": "x"}).attention
    monkeypatch.syspath_prepend(str(tmp_path))
    site = Site(tmp_path)
    add_attention(site, "only", 1, probe="return 'it is Sunday'")
    (tmp_path / "ruin.py").write_text("1 / 0")
    site.add_metadata("att-ruin", [("pymllm.v1", "attention.ruin", "ruin")])
    message = refused(choose_attention, Registry([str(tmp_path)]), section, context)
    assert message.startswith("no attention backend can serve this model here: only: it is Sunday; not loaded: ")
    assert "att-ruin 0.1.0" in message
    assert "ZeroDivisionError" in message
    empty = refused(choose_attention, Registry([]), section, context)
    assert empty == "no attention backend can serve this model here: none is installed"


def test_models_go_by_architecture() -> None:
    chosen = choose_model(Registry(), model_section(), checkpoint(architectures=["Qwen3ForCausalLM"]))
    assert chosen.choice.name == "qwen3"
    assert chosen.choice.reason == "the checkpoint's architecture is Qwen3ForCausalLM"
    named = choose_model(Registry(), model_section("llama"), checkpoint(architectures=["Whatever"]))
    assert (named.choice.name, named.choice.reason) == ("llama", "named in the configuration")


def test_an_unknown_architecture_is_one_line() -> None:
    message = refused(choose_model, Registry(), model_section(), checkpoint(architectures=["Qwen4ForCausalLM"]))
    assert message == (
        "no installed model plugin serves Qwen4ForCausalLM (the nearest is Qwen3ForCausalLM); "
        "install one that does, or see 'pymllm plugins'"
    )
    message = refused(choose_model, Registry(), model_section(), checkpoint())
    assert message == "the-model: config.json names no 'architectures'; set model.plugin to choose one"


def test_two_models_for_one_architecture_are_not_guessed_between(site: Site) -> None:
    site.add_plugin("model.dream", "dream", MODEL)
    message = refused(choose_model, Registry(), model_section(), checkpoint(architectures=["LlamaForCausalLM"]))
    assert message == "several model plugins serve LlamaForCausalLM: dream, llama; set model.plugin to one of them"


def test_quantization_goes_by_the_checkpoints_format(site: Site) -> None:
    site.add_plugin("quant.any", "q_any", QUANT.format(formats=("packed", "squeeze")))
    site.add_plugin("quant.exact", "q_exact", QUANT.format(formats=("packed/int4",)))
    section = quant_section()
    assert choose_quant(Registry(), section, checkpoint()) is None
    for config, name, form in (
        ({"quant_method": "packed", "format": "int4"}, "exact", "packed/int4"),
        ({"quant_method": "packed", "format": "int8"}, "any", "packed"),
        ({"quant_method": "squeeze"}, "any", "squeeze"),
    ):
        chosen = choose_quant(Registry(), section, checkpoint(quantization_config=config))
        assert chosen is not None
        assert (chosen.choice.name, chosen.choice.reason) == (name, f"the checkpoint's quantization is {form}")


def test_an_unknown_quantization_is_one_line() -> None:
    quantized = checkpoint(quantization_config={"quant_method": "packed", "format": "int3"})
    assert refused(choose_quant, Registry(), quant_section(), quantized) == (
        "the-model is quantized as packed/int3, which no installed quant plugin reads; "
        "install one that does, or see 'pymllm plugins'"
    )
    assert refused(choose_quant, Registry(), quant_section("none"), quantized) == (
        "the-model is quantized as packed/int3, which full precision cannot read; set quant.plugin to auto"
    )


def test_two_methods_for_one_quantization_are_not_guessed_between(site: Site) -> None:
    for name in ("one", "two"):
        site.add_plugin(f"quant.{name}", f"q_{name}", QUANT.format(formats=("packed",)))
    quantized = checkpoint(quantization_config={"quant_method": "packed"})
    message = refused(choose_quant, Registry(), quant_section(), quantized)
    assert message == "several quant plugins read packed: one, two; set quant.plugin to one of them"


def test_an_option_without_a_default_wants_the_plugin_named(site: Site) -> None:
    source = ATTENTION.format(module="att_needy", priority=900).replace("int = 3", "int = MISSING")
    site.add_plugin("attention.needy", "att_needy", "from omegaconf import MISSING\n" + source)
    (site.path / "att_needy_impl.py").write_text(BACKEND.format(page_sizes="None", probe="return None"))
    with pytest.raises(ConfigError, match=r"attention\.level"):
        attend()


def test_a_cache_policy_is_named() -> None:
    section = compose(None, {"model.path": "x", "cache.plugin": "chunk"}).cache
    chosen = choose_named(Registry(), "cache", section)
    assert (chosen.choice.kind, chosen.choice.name) == ("cache", "chunk")


@pytest.mark.parametrize("name", ["cuda_graphs", "overlap"])
def test_what_a_cpu_cannot_do_is_refused(tiny_llama, name) -> None:
    with pytest.raises(ConfigError, match=f"engine.{name}: true needs a CUDA device"):
        start(tiny_llama, {f"engine.{name}": True})
