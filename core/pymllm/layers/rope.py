"""Rotary position embeddings (Su et al. 2021, RoFormer), half-rotation layout ("neox")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pymllm.layers.rope_scaling import RopeSpec, rope_spec


class Rope(nn.Module):
    """Rotates the leading ``rotary_dim`` components of each head by its token's position.

    cos_sin: [positions, rotary_dim] float32; cosines, then sines, half each, both times the spec's scale.
    It exists once, however many layers use it.
    """

    cos_sin: Tensor

    def __init__(self, spec: RopeSpec, positions: int, *, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.rotary_dim = 2 * len(spec.inverse_frequencies)
        frequencies = torch.tensor(spec.inverse_frequencies, dtype=torch.float32)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
        table = torch.cat([angles.cos(), angles.sin()], dim=-1) * spec.scale
        self.register_buffer("cos_sin", table.to(device), persistent=False)
        self._step: Tensor | None = None
        self._angles: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def at(self, positions: Tensor) -> Iterator[Tensor]:
        """A step of tokens at ``positions``, [T]. Inside the ``with`` block, calls with what it gives, the positions to
        call with, look the angles up once for all layers (those that use this object's ``forward``)."""
        self._step = positions
        try:
            yield positions
        finally:
            self._step = None
            self._angles.clear()

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q: [T, H, D], k: [T, K, D], positions: [T] below the table's length -> rotated q and k."""
        cos, sin = self._rotation(positions, q.dtype)
        return self._rotate(q, cos, sin), self._rotate(k, cos, sin)

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin, [T, 1, rotary_dim] each: (c, c) and (-s, s)."""
        if positions is not self._step:
            return self._looked_up(positions, dtype)
        if dtype not in self._angles:
            self._angles[dtype] = self._looked_up(positions, dtype)
        return self._angles[dtype]

    def _looked_up(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos_sin.index_select(0, positions).to(dtype).unsqueeze(1).chunk(2, dim=-1)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(a, b) -> (a cos - b sin, b cos + a sin); what lies past rotary_dim passes."""
        size = self.rotary_dim
        if x.shape[-1] == size:
            return torch.addcmul(x * cos, x.roll(size // 2, -1), sin)
        head, rest = x.split([size, x.shape[-1] - size], dim=-1)
        return torch.cat([self._rotate(head, cos, sin), rest], dim=-1)


def rope_from_config(
    config: Mapping[str, Any], head_dim: int, max_positions: int, *, device: torch.device | str = "cpu"
) -> Rope:
    """The rotary embedding of a checkpoint's config, in the old or the new spelling (see ``rope_spec``).

    max_positions: longest context, tokens. Raises CheckpointError for a kind that is not supported.
    """
    return Rope(rope_spec(config, head_dim, max_positions), max_positions, device=device)
