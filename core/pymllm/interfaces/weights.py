"""The declarative name map: which checkpoint tensor fills which part of which parameter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Draw = Callable[[torch.Generator], Tensor]
"""Makes a random tensor on the generator's device."""


@dataclass(frozen=True)
class Binding:
    """One checkpoint tensor's destination.

    shape: the shape the checkpoint tensor must have.
    load: takes the tensor as read (CPU, the checkpoint's dtype) and stores it.
    draw: a tensor such as a checkpoint may hold, for ``model.load_format: random``; None: numbers of the model's dtype.
    """

    shape: tuple[int, ...]
    load: Callable[[Tensor], None]
    draw: Draw | None = None


def any_integers(shape: tuple[int, ...], dtype: torch.dtype) -> Draw:
    """Integers of the whole range of a type: packed codes, for example."""
    limits = torch.iinfo(dtype)

    def draw(generator: torch.Generator) -> Tensor:
        return torch.randint(limits.min, limits.max, shape, dtype=dtype, device=generator.device, generator=generator)

    return draw


def always(value: Tensor | float, shape: tuple[int, ...]) -> Draw:
    """One value, repeated: scales for example, which make integers numbers of the size that weights have."""
    return lambda generator: torch.as_tensor(value, device=generator.device).expand(shape)


class WeightMap:
    """Checkpoint tensor name -> binding, collected while the layers are built.

    A layer binds each name it reads; a fused projection binds one name per shard, each to its rows.
    Whoever loads a checkpoint must find every name of it here (or in ``ignored``) and fill every
    binding; anything else is an error that lists the names.
    """

    def __init__(self) -> None:
        self._bindings: dict[str, Binding] = {}
        self._ignored: list[re.Pattern[str]] = []
        self._refusals: dict[str, str] = {}

    def bind(self, name: str, destination: Tensor) -> None:
        """Copy the tensor ``name`` (cast to the destination's dtype) into ``destination``, a parameter or
        a view of one. The checkpoint tensor must have the destination's shape."""

        def copy(source: Tensor) -> None:
            with torch.no_grad():
                destination.copy_(source)

        self.bind_to(name, tuple(destination.shape), copy)

    def bind_to(
        self, name: str, shape: tuple[int, ...], load: Callable[[Tensor], None], *, draw: Draw | None = None
    ) -> None:
        """Hand the tensor ``name`` of the given shape to ``load`` (to slice, repack or quantize it). draw: makes one
        for random weights, where it holds no numbers of the model's dtype.

        Raises ValueError if the name is bound already: two layers would claim one tensor.
        """
        if name in self._bindings:
            raise ValueError(f"checkpoint tensor '{name}' is bound twice")
        self._bindings[name] = Binding(shape, load, draw)

    def ignore(self, pattern: str) -> None:
        """Checkpoint names that fully match this regular expression are known and not needed."""
        self._ignored.append(re.compile(pattern))

    def ignored(self, name: str) -> bool:
        """Whether ``name`` matches an ignored pattern."""
        return any(pattern.fullmatch(name) for pattern in self._ignored)

    def refuse(self, modules: Iterable[str], reason: str) -> None:
        """The quantization method cannot serve these modules: they are bound in full precision, and where the
        checkpoint has them otherwise the reason is told."""
        self._refusals.update(dict.fromkeys(modules, reason))

    def refusal(self, name: str) -> str | None:
        """Why the module of the tensor ``name`` is bound in full precision; None: it was not refused."""
        return self._refusals.get(name.rpartition(".")[0])

    def get(self, name: str) -> Binding | None:
        """The binding of ``name``, or None."""
        return self._bindings.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._bindings

    def __iter__(self) -> Iterator[str]:
        return iter(self._bindings)

    def __len__(self) -> int:
        return len(self._bindings)
