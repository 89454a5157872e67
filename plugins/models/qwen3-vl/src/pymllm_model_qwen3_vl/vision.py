"""Qwen3-VL's vision tower: a ViT over patches of any number of pictures at once.

N patches, C components of a patch, R = N / merge^2 feature rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pymllm.interfaces import MediaItem
from pymllm.layers import MLP, BuildContext
from pymllm_model_qwen3_vl.geometry import Geometries, Geometry
from pymllm_model_qwen3_vl.patches import PatchEmbedding
from pymllm_model_qwen3_vl.sizes import VisionSizes

EPS = 1e-6


class Block(nn.Module):
    """Attention inside each picture, then an MLP, each on the normed residual stream."""

    def __init__(self, context: BuildContext, sizes: VisionSizes) -> None:
        super().__init__()
        self.norm1 = context.layer_norm("norm1", sizes.hidden, EPS)
        self.qkv = context.linear("attn.qkv", sizes.hidden, 3 * sizes.hidden, bias=True, parallel="column")
        self.attention = context.varlen_attention(heads=sizes.heads, head_dim=sizes.head_dim)
        self.output = context.linear("attn.proj", sizes.hidden, sizes.hidden, bias=True, parallel="row")
        self.norm2 = context.layer_norm("norm2", sizes.hidden, EPS)
        self.mlp = MLP(
            context.at("mlp"),
            ("linear_fc1", "linear_fc2"),
            (sizes.hidden, sizes.intermediate, sizes.hidden),
            approximate="tanh",
        )

    def forward(self, h: Tensor, rows: Tensor, cos_sin: Tensor, starts: Sequence[int]) -> Tensor:
        """h: [N, C], may be overwritten; the rest: as :class:`pymllm.layers.VarlenAttention` takes it -> [N, C]."""
        qkv = self.qkv.after_norm(h, self.norm1)
        h = self.output.onto(self.attention(qkv, rows, cos_sin, starts), h)
        return self.mlp.onto(h, self.norm2)


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

    def forward(self, h: Tensor) -> Tensor:
        if self._merged_norm:
            return self.mlp(self.norm(h.view(self._shape)))
        return self.mlp(self.norm(h).view(self._shape))


class VisionTower(nn.Module):
    """context: at the tower's place in the checkpoint ("model.visual")."""

    def __init__(self, context: BuildContext, sizes: VisionSizes) -> None:
        super().__init__()
        self._sizes = sizes
        self.patches = PatchEmbedding(context.at("patch_embed"), sizes)
        self.table = context.embedding("pos_embed", sizes.table, sizes.hidden)
        self.blocks = nn.ModuleList(Block(context.at(f"blocks.{index}"), sizes) for index in range(sizes.depth))
        self.merger = Merger(context.at("merger"), sizes, merged_norm=False)
        self.level_mergers = nn.ModuleList(
            Merger(context.at(f"deepstack_merger_list.{index}"), sizes, merged_norm=True)
            for index in range(len(sizes.levels))
        )
        self._geometries = Geometries(sizes, context.device)

    def forward(self, items: Sequence[MediaItem]) -> Tensor:
        """The features of all items, one after another: [R, (1 + levels) x out], those of the last block first."""
        geometry = self._geometry(items)
        h = self.patches(items)
        h = h + self._positions(geometry).to(h.dtype)
        rows = torch.arange(len(h), device=h.device)
        starts = list(accumulate((height * width for t, height, width in _grids(items) for _ in range(t)), initial=0))
        width = self._sizes.out_hidden
        features = h.new_empty(len(h) // self._sizes.merge**2, (1 + len(self.level_mergers)) * width)
        levels = dict(zip(self._sizes.levels, range(len(self.level_mergers))))
        for index, block in enumerate(self.blocks):
            h = block(h, rows, geometry.cos_sin, starts)
            if index in levels:
                level = levels[index]
                features[:, (1 + level) * width : (2 + level) * width] = self.level_mergers[level](h)
        features[:, :width] = self.merger(h)
        return features

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
