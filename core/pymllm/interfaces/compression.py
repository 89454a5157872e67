"""The contract of what a model plugin knows about quantizing its models (``pymllm quantize``).

``ModelSpec.compression`` names a :class:`Compression`. Modules are called by their names in the checkpoint; a pattern
is a name, or a regular expression after "re:" that matches from the name's start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Smooth:
    """What ``source`` (a norm, or a linear layer) gives is what ``targets`` read and nobody else, so that a scale of a
    channel can move from one to the other (SmoothQuant: Xiao et al. 2023; AWQ: Lin et al. 2024)."""

    source: str
    targets: tuple[str, ...]


Sampler = Callable[[Path, Mapping[str, Any], Any, Sequence[Mapping[str, Any]]], dict[str, Any]]
"""(checkpoint folder, its config, tokenizer, messages) -> the arguments of transformers' model, for a conversation
whose parts may be {"type": "image", "image": a PIL image}."""


@dataclass(frozen=True)
class Compression:
    """smooth: what belongs together. keep: patterns of linear layers that stay in full precision unless a recipe says
    otherwise. seeing: patterns of those that only pictures reach. sample: for models that take pictures."""

    smooth: tuple[Smooth, ...] = ()
    keep: tuple[str, ...] = ("re:.*lm_head$",)
    seeing: tuple[str, ...] = ()
    sample: Sampler | None = None


def decoder(place: str) -> tuple[Smooth, ...]:
    """Of the pre-norm decoder of Llama and Qwen, whose layers are at ``place`` (a regular expression)."""
    layer = f"re:{place}\\.layers\\.\\d+\\."
    attention = tuple(f"{layer}self_attn\\.{name}_proj$" for name in "qkv")
    return (
        Smooth(f"{layer}input_layernorm$", attention),
        Smooth(f"{layer}self_attn\\.v_proj$", (f"{layer}self_attn\\.o_proj$",)),
        Smooth(
            f"{layer}post_attention_layernorm$",
            tuple(f"{layer}mlp\\.{name}_proj$" for name in ("gate", "up")),
        ),
        Smooth(f"{layer}mlp\\.up_proj$", (f"{layer}mlp\\.down_proj$",)),
    )
