"""What a compressed-tensors ``quantization_config`` says of each layer.

The format: compressed-tensors 0.19, ``QuantizationConfig`` and ``utils/match.py``. A target or an ignore entry is a
module's name, a regular expression that begins with "re:" and matches from the name's start, or the name of a class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymllm.errors import CheckpointError
from pymllm.interfaces.quant import Unsupported

QUANT_METHOD = "compressed-tensors"

CLASS = "Linear"
"""Every layer that a quantization method makes is one, by the name that checkpoints call it."""


@dataclass(frozen=True)
class QuantArgs:
    """How numbers are quantized. kind: "int" or "float". strategy: what shares a scale ("tensor", "channel", "group",
    "block", "token", ...). dynamic: scales come with the numbers, not with the checkpoint. actorder: GPTQ's."""

    bits: int
    kind: str
    strategy: str
    group_size: int | None
    symmetric: bool
    dynamic: bool
    actorder: str | None

    def __str__(self) -> str:
        parts = [f"{self.bits}-bit {self.kind}", f"per {self.strategy}"]
        if self.group_size:
            parts.append(f"of {self.group_size}")
        parts += ["symmetric" if self.symmetric else "asymmetric", "dynamic" if self.dynamic else "static"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Scheme:
    """Of a layer. format: how its tensors are stored. inputs: of its activations; None: not quantized."""

    format: str
    weights: QuantArgs
    inputs: QuantArgs | None


class CompressedTensors:
    """A whole ``quantization_config``; made by :meth:`read`. format: of all layers whose group says no other."""

    def __init__(self, form: str, groups: Sequence[tuple[Sequence[str], Scheme | None]], ignore: Sequence[str]) -> None:
        self.format = form
        self._groups = groups
        self._ignore = ignore
        self._used: set[str] = set()

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> CompressedTensors:
        """Raises CheckpointError that names the key of what is missing, of another kind, or changes what a layer
        computes in a way that no plugin knows."""
        if config.get("quant_method") != QUANT_METHOD:
            raise CheckpointError(f"quantization_config.quant_method is not '{QUANT_METHOD}'")
        form = _typed(config, "format", str)
        for key in ("transform_config", "sparsity_config"):
            value = config.get(key)
            if value and not (isinstance(value, Mapping) and value.get("format") == "dense"):
                raise CheckpointError(f"quantization_config.{key} is not supported: it must be empty")
        groups = []
        for name, group in _typed(config, "config_groups", Mapping).items():
            place = f"config_groups.{name}"
            if not isinstance(group, Mapping):
                raise CheckpointError(f"quantization_config.{place} is not a mapping")
            if group.get("output_activations"):
                raise CheckpointError(f"quantization_config.{place}.output_activations is not supported")
            groups.append((_strings(group, "targets", place), _scheme(group, form, place)))
        return cls(form, groups, _strings(config, "ignore", ""))

    def scheme(self, names: Sequence[str]) -> Scheme | None:
        """Of the layer whose partitions have these names; None: it is in full precision.

        Raises Unsupported if its partitions differ.
        """
        found = [self._of(name) for name in names]
        if any(scheme != found[0] for scheme in found):
            told = ", ".join(f"{name}: {scheme.weights if scheme else 'full'}" for name, scheme in zip(names, found))
            raise Unsupported(f"the checkpoint quantizes its parts differently ({told})")
        return found[0]

    def unmatched(self) -> list[str]:
        """Ignore entries that named no layer so far. They may name what is no linear layer here: a convolution, or a
        head that shares the embedding's weight."""
        return [entry for entry in self._ignore if entry not in self._used]

    def _of(self, name: str) -> Scheme | None:
        ignored = [entry for entry in self._ignore if _place(entry, name) is not None]
        self._used.update(ignored)
        if ignored:
            return None
        ranked = [
            (place, number)
            for number, (targets, _) in enumerate(self._groups)
            for place in (_place(target, name) for target in targets)
            if place is not None
        ]
        return self._groups[min(ranked)[1]][1] if ranked else None


def named_by(entry: str, name: str) -> bool:
    """Whether a target or an ignore entry names a linear layer."""
    return _place(entry, name) is not None


def _place(entry: str, name: str) -> int | None:
    """How closely an entry names a module: 0 by its name, 1 by an expression, 2 by its class; None: not at all."""
    if entry.startswith("re:"):
        return 1 if re.match(entry[3:], name) else None
    return 0 if entry == name else 2 if entry == CLASS else None


def _scheme(group: Mapping[str, Any], form: str, place: str) -> Scheme | None:
    weights = _args(group, "weights", place)
    own = group.get("format") or form
    return None if weights is None else Scheme(str(own), weights, _args(group, "input_activations", place))


def _args(group: Mapping[str, Any], key: str, place: str) -> QuantArgs | None:
    value = group.get(key)
    if value is None:
        return None
    where = f"{place}.{key}"
    if not isinstance(value, Mapping):
        raise CheckpointError(f"quantization_config.{where} is not a mapping")
    group_size = value.get("group_size")
    strategy = value.get("strategy") or ("tensor" if group_size is None else "group" if group_size > 0 else "channel")
    actorder = value.get("actorder")
    return QuantArgs(
        bits=_typed(value, "num_bits", int, where, 8),
        kind=_typed(value, "type", str, where, "int").lower(),
        strategy=str(strategy),
        group_size=group_size if isinstance(group_size, int) and group_size > 0 else None,
        symmetric=_typed(value, "symmetric", bool, where, True),
        dynamic=value.get("dynamic", False) is not False,
        actorder="group" if actorder is True else str(actorder).lower() if actorder else None,
    )


def _strings(config: Mapping[str, Any], key: str, place: str) -> list[str]:
    value = config.get(key) or []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise CheckpointError(f"quantization_config.{place + '.' if place else ''}{key} is not a list of names")
    for entry in value:
        if entry.startswith("re:"):
            try:
                re.compile(entry[3:])
            except re.error as error:
                raise CheckpointError(f"quantization_config: '{entry}' is no regular expression: {error}") from error
    return value


def _typed(config: Mapping[str, Any], key: str, kind: type[Any], place: str = "", default: Any = None) -> Any:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CheckpointError(
            f"quantization_config.{place + '.' if place else ''}{key} is {value!r}: it must be of type {kind.__name__}"
        )
    return value
