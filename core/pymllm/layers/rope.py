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
        self._step: tuple[Tensor, Tensor, Tensor] | None = None

    @contextmanager
    def at(self, positions: Tensor, dtype: torch.dtype) -> Iterator[None]:
        """Look the angles of a step's tokens up once for all layers: inside the ``with`` block, calls with
        this very ``positions`` tensor and dtype reuse them. positions: [T]."""
        self._step = (positions, *self._rotation(positions, dtype))
        try:
            yield
        finally:
            self._step = None

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q: [T, H, D], k: [T, K, D], positions: [T] below the table's length -> rotated q and k."""
        step = self._step
        if step is not None and step[0] is positions and step[1].dtype == q.dtype:
            _, cos, sin = step
        else:
            cos, sin = self._rotation(positions, q.dtype)
        return self._rotate(q, cos, sin), self._rotate(k, cos, sin)

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin, [T, 1, rotary_dim] each: (c, c) and (-s, s)."""
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
