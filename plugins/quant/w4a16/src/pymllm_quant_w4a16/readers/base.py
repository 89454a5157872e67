"""What the readers of the formats have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pymllm.checkpoint.compressed_tensors import named_by
from pymllm.errors import PluginError
from pymllm.interfaces import LinearSpec, Unsupported, WeightMap, always, any_integers
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.plugin import DEFAULT_IGNORE, GROUP_SIZES, PER_CHANNEL

USUAL_SCALE = 0.02 / 4.6
"""Makes numbers of standard deviation 0.02 of codes of which all are alike: of random weights."""


def bind_codes(weights: WeightMap, name: str, shape: tuple[int, ...], load: Callable[[Tensor], None]) -> None:
    """Bind a tensor of packed codes or zero points, int32."""
    weights.bind_to(name, shape, load, draw=any_integers(shape, torch.int32))


def bind_scales(weights: WeightMap, name: str, shape: tuple[int, ...], load: Callable[[Tensor], None]) -> None:
    """Bind a tensor of scales."""
    weights.bind_to(name, shape, load, draw=always(torch.tensor(USUAL_SCALE).bfloat16(), shape))


class Bind(Protocol):
    """Binds the tensors of one partition: ``name`` is its module's, ``rows`` are its rows of the fused layer."""

    def __call__(self, layer: W4A16Linear, name: str, rows: slice, weights: WeightMap) -> None: ...


@dataclass(frozen=True)
class Plan:
    """How a layer is read. group: terms that share a scale, at most the layer's inputs."""

    group: int
    bind: Bind


class Reader(ABC):
    """Reads one kind of checkpoint; made from its ``quantization_config``."""

    @abstractmethod
    def plan(self, spec: LinearSpec) -> Plan | None:
        """How a layer is read; None: it is in full precision. Raises Unsupported with a reason."""

    def finalize(self) -> None:
        """Called once after all layers were built. Raises PluginError for an option that named no layer."""


class Ignored:
    """``quant.ignore``: names of modules, or expressions that begin with "re:"."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._unmatched = set(patterns) - set(DEFAULT_IGNORE)

    def takes(self, names: Sequence[str]) -> bool:
        """Whether a pattern names one of a layer's partitions."""
        matches = [entry for entry in self._patterns if any(named_by(entry, name) for name in names)]
        self._unmatched.difference_update(matches)
        return bool(matches)

    def finalize(self) -> None:
        """Raises PluginError if a pattern named no layer, but for the default ones."""
        if self._unmatched:
            entries = ", ".join(f"'{entry}'" for entry in sorted(self._unmatched))
            raise PluginError(f"no linear layer matches {entries} of quant.ignore: correct or remove it")


def group_of(group_size: int | None, in_features: int) -> int:
    """Terms that share a scale in a layer of so many inputs, from a config's ``group_size`` (-1 or None: all).

    Raises Unsupported where groups are of a size that no kernel reads, or do not fill a row.
    """
    if group_size is None or group_size == PER_CHANNEL:
        return in_features
    if group_size not in GROUP_SIZES:
        raise Unsupported(f"groups of {group_size} are not supported, only of 32, 64, 128 or a whole row")
    if in_features % group_size:
        raise Unsupported(f"{in_features} inputs are not a multiple of the group size, {group_size}")
    return group_size


def nibbles(packed: Tensor, device: torch.device) -> Tensor:
    """int32 [..., W] -> uint8 [..., 8 W] on the device, the lowest nibble of each word first."""
    octets = packed.to(device, torch.int32).contiguous().view(torch.uint8)
    return torch.stack((octets & 0xF, octets >> 4), -1).flatten(-2)


def typed(config: Mapping[str, Any], key: str, kind: type[Any], default: Any) -> Any:
    """A key of ``quantization_config``. Raises PluginError if its value is of another kind."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PluginError(f"quantization_config.{key} is {value!r}: it must be of type {kind.__name__}")
    return value


def require(config: Mapping[str, Any], key: str, allowed: Sequence[Any], default: Any) -> Any:
    """A key of ``quantization_config`` whose value must be one of these. Raises PluginError."""
    value = config.get(key, default)
    if value not in allowed:
        told = " or ".join(repr(one) for one in allowed)
        raise PluginError(
            f"quantization_config.{key} of this {config.get('quant_method')} checkpoint is {value!r}, "
            f"which w4a16 cannot read: it reads {told}"
        )
    return value
