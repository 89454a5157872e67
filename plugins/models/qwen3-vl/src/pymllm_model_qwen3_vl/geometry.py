"""Where patches are: their place in the learned position table, and their rotation."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from pymllm_model_qwen3_vl.sizes import VisionSizes

KEPT_PATCHES = 65536
"""How many patches' geometry is kept for later, 304 bytes each with heads of 64."""


@dataclass(frozen=True)
class Geometry:
    """Of N patches. corners: [N, 4] rows of the position table around each, and weights: [N, 4] float32, how much each
    counts. cos_sin: [N, head_dim] float32, cosines, then sines, half each."""

    corners: Tensor
    weights: Tensor
    cos_sin: Tensor


class Geometries:
    """Makes the geometry of the patches of a picture, in the order of :class:`PatchEmbedding`, and keeps the latest."""

    def __init__(self, sizes: VisionSizes, device: torch.device) -> None:
        self._sizes = sizes
        self._device = device
        self._kept: OrderedDict[tuple[int, int], Geometry] = OrderedDict()
        exponents = torch.arange(0, sizes.head_dim // 2, 2, dtype=torch.float32) / (sizes.head_dim // 2)
        self._frequencies = (1.0 / sizes.theta**exponents).to(device)

    def __call__(self, height: int, width: int) -> Geometry:
        """height, width: in patches."""
        key = (height, width)
        found = self._kept.pop(key, None) or self._make(height, width)
        self._kept[key] = found
        while sum(h * w for h, w in self._kept) > KEPT_PATCHES:
            self._kept.popitem(last=False)
        return found

    def _make(self, height: int, width: int) -> Geometry:
        side = round(self._sizes.table**0.5)
        rows, columns = self._places(height, width)
        upper, lower, down = _between(rows, height, side)
        left, right, across = _between(columns, width, side)
        corners = torch.stack([upper * side + left, upper * side + right, lower * side + left, lower * side + right], 1)
        shares = ((1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across)
        angles = torch.cat([rows[:, None] * self._frequencies, columns[:, None] * self._frequencies], dim=1)
        return Geometry(corners, torch.stack(shares, 1), torch.cat([angles.cos(), angles.sin()], dim=1))

    def _places(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Row and column of each patch, [height x width] each."""
        merge = self._sizes.merge
        numbers = torch.arange(height * width, device=self._device).view(height // merge, merge, width // merge, merge)
        order = numbers.transpose(1, 2).flatten()
        return order // width, order % width


def _between(index: Tensor, count: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where ``count`` patches along an axis fall among ``side`` rows of a table whose ends are theirs: the row before,
    the one after, and how far (0 to 1) it is from the one to the other."""
    place = index.float() * (side - 1) / max(count - 1, 1)
    before = place.floor()
    first = before.long()
    return first, (first + 1).clamp(max=side - 1), place - before
