"""All that a plugin author imports first: the hook marker and the spec each hook returns.

A plugin is a *light* module, named by an entry point ``"<kind>.<name>"`` in the group ``pymllm.v1``, that
implements one hook (see :mod:`pymllm.hookspecs`) and returns a spec. Nothing heavy is imported to
describe a plugin: ``factory`` and ``probe`` are import strings, loaded only when the plugin is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pluggy

__all__ = [
    "AttentionOptions",
    "AttentionSpec",
    "CacheOptions",
    "CachePolicySpec",
    "ModelOptions",
    "ModelSpec",
    "PluginSpec",
    "QuantOptions",
    "QuantSpec",
    "hookimpl",
]

hookimpl = pluggy.HookimplMarker("pymllm")


@dataclass
class ModelOptions:
    """Base of a model plugin's options: subclass it to add keys to the ``model`` section."""


@dataclass
class QuantOptions:
    """Base of a quantization plugin's options: subclass it to add keys to the ``quant`` section."""


@dataclass
class AttentionOptions:
    """Base of an attention plugin's options: subclass it to add keys to the ``attention`` section."""


@dataclass
class CacheOptions:
    """Base of a cache policy's options: subclass it to add keys to the ``cache`` section.

    page_size: tokens in a KV page. Every policy has it; the attention backend says which sizes it can.
    """

    page_size: int = 16


def import_object(reference: str) -> Any:
    """Import ``"package.module:Attribute"``. Raises ImportError or AttributeError when it is not there."""
    module, separator, attribute = reference.partition(":")
    if not separator or not attribute:
        raise ImportError(f"'{reference}' is not of the form 'package.module:Attribute'")
    return getattr(import_module(module), attribute)


@dataclass(frozen=True, kw_only=True)
class PluginSpec:
    """One implementation that a plugin offers.

    config: a dataclass, subclass of the kind's ``...Options``; its fields are the keys that the plugin's
        section of the configuration takes.
    factory: import string ``"package.module:Attribute"`` of the implementation; called as the kind's
        interface in :mod:`pymllm.interfaces` says.
    summary: one line for ``pymllm plugins``.
    """

    config: type
    factory: str
    summary: str = ""

    def load_factory(self) -> Any:
        """Import the implementation. Raises whatever its module raises."""
        return import_object(self.factory)


@dataclass(frozen=True, kw_only=True)
class ModelSpec(PluginSpec):
    """A model plugin.

    architectures: entries of config.json's ``architectures`` that it serves.
    processor: for a model that takes images or videos, import string of a factory
        ``processor(config, context) -> MediaProcessor`` (see :mod:`pymllm.interfaces.media`). It is loaded in the
        process that answers clients, which never runs a model: its module must not import torch.
    evaluation: for a plugin that has questions to judge a model by (``pymllm eval``), import string of a function that
        gives them (see :mod:`pymllm.interfaces.evaluation`).
    compression: for models that ``pymllm quantize`` may quantize, import string of what it must know (see
        :mod:`pymllm.interfaces.compression`).
    """

    config: type = ModelOptions
    architectures: tuple[str, ...] = ()
    processor: str = ""
    evaluation: str = ""
    compression: str = ""


@dataclass(frozen=True, kw_only=True)
class QuantSpec(PluginSpec):
    """A quantization method. ``formats``: values of ``quantization_config`` that it reads, each either a
    ``quant_method`` ("awq") or a ``quant_method/format`` pair ("compressed-tensors/int-quantized")."""

    config: type = QuantOptions
    formats: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(PluginSpec):
    """An attention backend.

    priority: ``attention: auto`` takes the highest whose probe passes and that covers the model.
    probe: import string of a function ``probe(device: torch.device) -> str | None`` that really runs a
        kernel; it returns None when the backend works there, otherwise one line that says why not.
    """

    config: type = AttentionOptions
    priority: int = 0
    probe: str = ""

    def load_probe(self) -> Callable[..., str | None]:
        """Import the probe. Raises whatever its module raises."""
        probe: Callable[..., str | None] = import_object(self.probe)
        return probe


@dataclass(frozen=True, kw_only=True)
class CachePolicySpec(PluginSpec):
    """A cache policy (which computed KV pages are kept, shared and dropped)."""

    config: type = CacheOptions
