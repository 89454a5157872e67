"""Qwen3-VL's vision tower: a ViT over patches of any number of pictures at once.

N patches, C components of a patch, R = N / merge^2 feature rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pymllm.interfaces import MediaItem
from pymllm.layers import MLP, BuildContext, VarlenStack
from pymllm_model_qwen3_vl.geometry import Geometries, Geometry
from pymllm_model_qwen3_vl.patches import PatchEmbedding
from pymllm_model_qwen3_vl.sizes import VisionSizes

EPS = 1e-6


class Block(nn.Module):
    """Attention inside each picture, then an MLP, each on the normed residual stream, to which each adds its result
    without its bias. What the stream lacks so far, the norms are given.

    biases: [2, C], where those of the checkpoint go.
    """

    def __init__(self, context: BuildContext, sizes: VisionSizes, biases: Tensor) -> None:
        super().__init__()
        self.norm1 = context.layer_norm("norm1", sizes.hidden, EPS)
        self.qkv = context.linear("attn.qkv", sizes.hidden, 3 * sizes.hidden, bias=True, parallel="column")
        self.attention = context.varlen_attention(heads=sizes.heads, head_dim=sizes.head_dim)
        self.output = context.linear("attn.proj", sizes.hidden, sizes.hidden, parallel="row")
        self.norm2 = context.layer_norm("norm2", sizes.hidden, EPS)
        self.mlp = MLP(
            context.at("mlp"),
            ("linear_fc1", "linear_fc2"),
            (sizes.hidden, sizes.intermediate, sizes.hidden),
            approximate="tanh",
            last_bias=False,
        )
        for name, bias in zip(("attn.proj.bias", "mlp.linear_fc2.bias"), biases):
            context.weights.bind(context.name(name), bias)

    def forward(self, h: Tensor, rows: Tensor, cos_sin: Tensor, starts: Sequence[int], lacking: Tensor) -> Tensor:
        """h: [N, C], may be overwritten; lacking: [2, C] float32, what h lacks at each norm; the rest: as
        :class:`pymllm.layers.VarlenAttention` takes it -> [N, C]."""
        qkv = self.qkv.after_norm(h, partial(self.norm1, offset=lacking[0]))
        h = self.output.onto(self.attention(qkv, rows, cos_sin, starts), h)
        return self.mlp.onto(h, partial(self.norm2, offset=lacking[1]))


class Merger(nn.Module):
    """merge^2 neighbouring patches become one row of the language model's width: [N, C] -> [R, out].

    merged_norm: whether the norm is over the merged components, not over each patch's.
    """

    def __init__(self, context: BuildContext, sizes: VisionSizes, *, merged_norm: bool) -> None:
        super().__init__()
        merged = sizes.hidden * sizes.merge**2
        self._shape = (-1, merged)
        self._merged_norm = merged_norm
        self.norm = context.layer_norm("norm", merged if merged_norm else sizes.hidden, EPS)
        self.mlp = MLP(context, ("linear_fc1", "linear_fc2"), (merged, merged, sizes.out_hidden), approximate="none")

    def forward(self, h: Tensor, lacking: Tensor) -> Tensor:
        """lacking: [C] float32, what h lacks."""
        if self._merged_norm:
            count = self._shape[1] // len(lacking)
            return self.mlp(self.norm(h.view(self._shape), lacking.repeat(count)))
        return self.mlp(self.norm(h, lacking).view(self._shape))


class Blocks(VarlenStack):
    """The blocks, and the mergers that take features from them. A block's biases on the residual stream are not added
    to it, row by row, but counted into what later norms read: the same sum, in one pass less over the stream."""

    biases: Tensor

    def __init__(self, context: BuildContext, sizes: VisionSizes) -> None:
        super().__init__(width=sizes.hidden, angles=sizes.head_dim, merged=sizes.merge**2)
        empty = torch.empty(2 * sizes.depth, sizes.hidden, dtype=context.dtype, device=context.device)
        self.biases = nn.Parameter(empty, requires_grad=False)
        pairs = self.biases.split(2)
        self.blocks = nn.ModuleList(
            Block(context.at(f"blocks.{index}"), sizes, pair) for index, pair in enumerate(pairs)
        )
        self.merger = Merger(context.at("merger"), sizes, merged_norm=False)
        self.level_mergers = nn.ModuleList(
            Merger(context.at(f"deepstack_merger_list.{index}"), sizes, merged_norm=True)
            for index in range(len(sizes.levels))
        )
        self._after = {block: level for level, block in enumerate(sizes.levels, start=1)}

    def compute(self, h: Tensor, cos_sin: Tensor, starts: Sequence[int]) -> Tensor:
        """-> [R, (1 + levels) x out], those of the last block first."""
        rows = torch.arange(len(h), device=h.device)
        lacking = F.pad(self.biases.float().cumsum(0), (0, 0, 1, 0))
        features: list[Tensor] = [h] * (1 + len(self._after))
        for index, block in enumerate(self.blocks):
            h = block(h, rows, cos_sin, starts, lacking[2 * index : 2 * index + 2])
            if index in self._after:
                level = self._after[index]
                features[level] = self.level_mergers[level - 1](h, lacking[2 * index + 2])
        features[0] = self.merger(h, lacking[-1])
        return torch.cat(features, dim=1)


class VisionTower(nn.Module):
    """context: at the tower's place in the checkpoint ("model.visual")."""

    def __init__(self, context: BuildContext, sizes: VisionSizes) -> None:
        super().__init__()
        self.patches = PatchEmbedding(context.at("patch_embed"), sizes)
        self.table = context.embedding("pos_embed", sizes.table, sizes.hidden)
        self.blocks = Blocks(context, sizes)
        self._geometries = Geometries(sizes, context.device)

    def forward(self, items: Sequence[MediaItem]) -> Tensor:
        """The features of all items, one after another: [R, (1 + levels) x out], those of the last block first."""
        geometry = self._geometry(items)
        h = self.patches(items)
        h = h + self._positions(geometry).to(h.dtype)
        starts = list(accumulate((height * width for t, height, width in _grids(items) for _ in range(t)), initial=0))
        return self.blocks(h, geometry.cos_sin, starts)

    def _geometry(self, items: Sequence[MediaItem]) -> Geometry:
        """Of the patches of all items, which is the same at every time of one."""
        parts = [self._geometries(height, width) for t, height, width in _grids(items) for _ in range(t)]
        return Geometry(
            corners=torch.cat([part.corners for part in parts]),
            weights=torch.cat([part.weights for part in parts]),
            cos_sin=torch.cat([part.cos_sin for part in parts]),
        )

    def _positions(self, geometry: Geometry) -> Tensor:
        """The position table between its rows, [N, C] float32."""
        table = self.table.weight.float()
        return F.embedding_bag(geometry.corners, table, per_sample_weights=geometry.weights, mode="sum")


def _grids(items: Sequence[MediaItem]) -> list[tuple[int, int, int]]:
    return [item.grid for item in items]
