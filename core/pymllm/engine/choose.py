"""Chooses the plugins of a run, and says why: by name, or by what the checkpoint and the machine need."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pymllm.checkpoint import Checkpoint
from pymllm.compose import auto_section
from pymllm.engine.messages import PluginChoice
from pymllm.errors import PluginError
from pymllm.interfaces.attention import AttentionCapabilities, AttentionContext
from pymllm.plugin import AttentionSpec, ModelSpec, PluginSpec, QuantSpec
from pymllm.registry import PluginInfo, PluginProblem, Registry
from pymllm.registry.faults import describe


@dataclass(frozen=True)
class Chosen:
    """A plugin, its loaded factory, its options (the section of the configuration) and the reason."""

    factory: Any
    options: Any
    choice: PluginChoice


def _chosen(registry: Registry, info: PluginInfo, spec: PluginSpec, options: Any, reason: str) -> Chosen:
    factory = registry.factory(info.kind, info.name, spec)
    if options.plugin == "auto":
        options = auto_section(info.kind, options, spec)
    choice = PluginChoice(
        kind=info.kind, name=info.name, distribution=info.distribution, version=info.version, reason=reason
    )
    return Chosen(factory, options, choice)


def choose_named(registry: Registry, kind: str, section: Any) -> Chosen:
    """The plugin that a section names."""
    name = section.plugin
    info, spec = registry.find(kind, name), registry.load(kind, name)
    return _chosen(registry, info, spec, section, "named in the configuration")


def _broken(problems: list[PluginProblem]) -> str:
    """What to add to an error when plugins that might have fitted could not be loaded."""
    return "".join(f"; not loaded: {problem.message}" for problem in problems)


def choose_model(registry: Registry, section: Any, checkpoint: Checkpoint) -> Chosen:
    """By name, or the plugin that serves one of the checkpoint's ``architectures``."""
    if section.plugin != "auto":
        return choose_named(registry, "model", section)
    architectures = list(checkpoint.config.get("architectures") or [])
    if not architectures:
        raise PluginError(f"{checkpoint.name}: config.json names no 'architectures'; set model.plugin to choose one")
    candidates, problems = registry.candidates("model")
    fitting = [(i, s) for i, s in candidates if isinstance(s, ModelSpec) and set(s.architectures) & set(architectures)]
    if len(fitting) > 1:
        names = ", ".join(info.name for info, _ in fitting)
        raise PluginError(f"several model plugins serve {architectures[0]}: {names}; set model.plugin to one of them")
    if not fitting:
        known = sorted({a for _, s in candidates if isinstance(s, ModelSpec) for a in s.architectures})
        close = difflib.get_close_matches(architectures[0], known, n=1)
        hint = f" (the nearest is {close[0]})" if close else ""
        raise PluginError(
            f"no installed model plugin serves {architectures[0]}{hint}; "
            f"install one that does, or see 'pymllm plugins'{_broken(problems)}"
        )
    info, spec = fitting[0]
    return _chosen(registry, info, spec, section, f"the checkpoint's architecture is {architectures[0]}")


def quant_formats(config: Mapping[str, Any]) -> list[str]:
    """The names a ``quantization_config`` goes by: "method/format" if it has a format, then "method"."""
    method = str(config.get("quant_method", ""))
    form = config.get("format")
    return [f"{method}/{form}", method] if form else [method]


def choose_quant(registry: Registry, section: Any, checkpoint: Checkpoint) -> Chosen | None:
    """By name, or by the checkpoint's ``quantization_config``; None is full precision."""
    config = checkpoint.quantization_config
    if section.plugin == "none":
        if config is not None:
            form = quant_formats(config)[0]
            raise PluginError(
                f"{checkpoint.name} is quantized as {form}, which full precision cannot read; set quant.plugin to auto"
            )
        return None
    if section.plugin != "auto":
        return choose_named(registry, "quant", section)
    if config is None:
        return None
    formats = quant_formats(config)
    candidates, problems = registry.candidates("quant")
    for wanted in formats:
        fitting = [(i, s) for i, s in candidates if isinstance(s, QuantSpec) and wanted in s.formats]
        if len(fitting) > 1:
            names = ", ".join(info.name for info, _ in fitting)
            raise PluginError(f"several quant plugins read {wanted}: {names}; set quant.plugin to one of them")
        if fitting:
            return _chosen(registry, *fitting[0], section, f"the checkpoint's quantization is {wanted}")
    raise PluginError(
        f"{checkpoint.name} is quantized as {formats[0]}, which no installed quant plugin reads; "
        f"install one that does, or see 'pymllm plugins'{_broken(problems)}"
    )


def choose_attention(registry: Registry, section: Any, context: AttentionContext) -> Chosen:
    """By name, or the backend of the highest priority that covers the model and whose probe runs here."""
    if section.plugin != "auto":
        chosen = choose_named(registry, "attention", section)
        refusal = _refusal(chosen.factory, registry.load("attention", section.plugin), context)
        if refusal:
            raise PluginError(
                f"attention plugin '{section.plugin}' cannot serve this model here: {refusal}; "
                "set attention.plugin to another, or to auto"
            )
        return chosen
    candidates, problems = registry.candidates("attention")
    ranked = sorted(candidates, key=lambda c: (-getattr(c[1], "priority", 0), c[0].name))
    reasons: list[str] = []
    for info, spec in ranked:
        try:
            refusal = _refusal(registry.factory("attention", info.name, spec), spec, context)
        except PluginError as error:
            refusal = str(error)
        if refusal is None:
            passed = "".join(f"; {reason}" for reason in reasons)
            why = f"highest priority that runs on {context.device.type} and covers the model{passed}"
            return _chosen(registry, info, spec, section, why)
        reasons.append(f"{info.name}: {refusal}")
    listed = "; ".join(reasons) or "none is installed"
    raise PluginError(f"no attention backend can serve this model here: {listed}{_broken(problems)}")


def _refusal(factory: Any, spec: PluginSpec, context: AttentionContext) -> str | None:
    """Why a backend cannot serve the model here, or None: what it declares, then what its probe finds."""
    capabilities = getattr(factory, "capabilities", None)
    if not isinstance(capabilities, AttentionCapabilities):
        return "declares no AttentionCapabilities in 'capabilities' of its factory"
    return capabilities.refuse(context) or _probe(spec, context.device)


def _probe(spec: PluginSpec, device: torch.device) -> str | None:
    """Run a backend's probe; what it says or raises is the refusal."""
    if not isinstance(spec, AttentionSpec) or not spec.probe:
        return None
    try:
        return spec.load_probe()(device)
    except Exception as error:
        return f"its probe failed: {describe(error)}"
