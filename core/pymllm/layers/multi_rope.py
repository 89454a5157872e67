"""Rotary embeddings of positions with several axes (M-RoPE: Wang et al. 2024, Qwen2-VL, section 2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pymllm.errors import CheckpointError
from pymllm.layers.rope import Rope
from pymllm.layers.rope_scaling import RopeSpec, rope_parameters

AXES = 3
"""Time, height, width."""


class MultiRope(Rope):
    """Rotates each component of a head by one of its token's three positions.

    :meth:`at` makes a step's table of cosines and sines, one row a token, and gives the rows as positions, so that
    what rotates (a backend's kernel, say) need not know of axes. Outside of it the table is empty.

    axes: which axis each of the rotated pairs goes by, 0 to 2.
    """

    axes: Tensor
    frequencies: Tensor

    def __init__(self, spec: RopeSpec, axes: Sequence[int], *, device: torch.device | str = "cpu") -> None:
        super().__init__(spec, 0, device=device)
        self._scale = spec.scale
        self.register_buffer("axes", torch.tensor(axes, device=device), persistent=False)
        frequencies = torch.tensor(spec.inverse_frequencies, dtype=torch.float32, device=device)
        self.register_buffer("frequencies", frequencies, persistent=False)

    @contextmanager
    def at(self, positions: Tensor) -> Iterator[Tensor]:
        """positions: [3, T]; gives the rows [T] that stand for them. May be captured in a CUDA graph."""
        outside = self.cos_sin
        self.cos_sin = self._table(positions)
        try:
            with super().at(torch.arange(positions.shape[1], device=positions.device)) as rows:
                yield rows
        finally:
            self.cos_sin = outside

    def _table(self, positions: Tensor) -> Tensor:
        """[T, rotary_dim] float32."""
        angles = positions.t().index_select(1, self.axes) * self.frequencies
        table = torch.empty(len(angles), self.rotary_dim, dtype=torch.float32, device=angles.device)
        cos, sin = table.chunk(2, dim=1)
        torch.cos(angles, out=cos)
        torch.sin(angles, out=sin)
        return table if self._scale == 1.0 else table.mul_(self._scale)


def interleaved_axes(config: Mapping[str, Any], pairs: int) -> tuple[int, ...]:
    """The axis of each of a head's ``pairs`` rotated pairs by a config's ``mrope_section`` (t, h, w): pair j goes by
    axis j % 3 as long as j < 3 times that axis' section, the others by time (Qwen3-VL; Bai et al. 2025).

    Raises CheckpointError for sections that are not three numbers with room for them, and for sections that follow
    one another (``mrope_interleaved: false``).
    """
    parameters = rope_parameters(config)
    sections = parameters.get("mrope_section", [24, 20, 20])
    if parameters.get("mrope_interleaved", True) is not True:
        raise CheckpointError("mrope_interleaved false is not supported (supported: true)")
    if not isinstance(sections, list) or [type(size) for size in sections] != [int] * AXES or sum(sections) != pairs:
        raise CheckpointError(f"mrope_section is {sections}: it must be three numbers whose sum is {pairs}")
    return tuple(j % AXES if j < AXES * sections[j % AXES] else 0 for j in range(pairs))
