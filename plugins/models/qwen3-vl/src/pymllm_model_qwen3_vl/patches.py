"""From resized pixels to patch embeddings, on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pymllm.interfaces import MediaItem
from pymllm.layers import BuildContext
from pymllm_model_qwen3_vl.sizes import VisionSizes


class PatchEmbedding(nn.Module):
    """Normalizes pixels, cuts them into patches and projects these.

    Patches lie by rows of blocks of merge x merge, so that those that become one feature row are neighbours.
    weight: [C, 3 x temporal x patch x patch], the kernel of the checkpoint's 3-D convolution; bias: [C].
    """

    values: Tensor

    def __init__(self, context: BuildContext, sizes: VisionSizes) -> None:
        super().__init__()
        self._sizes = sizes
        kernel = (sizes.hidden, 3, sizes.temporal_patch, sizes.patch, sizes.patch)
        empty = torch.empty(kernel, dtype=context.dtype, device=context.device)
        self.weight = nn.Parameter(empty.flatten(1), requires_grad=False)
        self.bias = nn.Parameter(empty.new_empty(sizes.hidden), requires_grad=False)
        context.weights.bind(context.name("proj.weight"), self.weight.view(kernel))
        context.weights.bind(context.name("proj.bias"), self.bias)
        self.register_buffer("values", normalized_bytes().to(context.device, context.dtype), persistent=False)

    def forward(self, items: Sequence[MediaItem]) -> Tensor:
        """The patches of all items, one after another -> [N, C]."""
        patches = torch.cat([self.patches(item) for item in items])
        return F.linear(patches, self.weight, self.bias)

    def patches(self, item: MediaItem) -> Tensor:
        """[t x h x w, 3 x temporal x patch x patch], normalized; a single frame fills its whole patch in time."""
        sizes, (time, height, width) = self._sizes, item.grid
        blocks = item.pixels.view(
            time, -1, height // sizes.merge, sizes.merge, sizes.patch, width // sizes.merge, sizes.merge, sizes.patch, 3
        )
        # time, block row, block column, row and column in the block; then channel, frame, row and column of a pixel
        ordered = blocks.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).contiguous().to(torch.int32)
        values = F.embedding(ordered, self.values[:, None]).view(-1, 3, blocks.shape[1], sizes.patch**2)
        return values.expand(-1, -1, sizes.temporal_patch, -1).reshape(time * height * width, -1)


def normalized_bytes() -> Tensor:
    """What each of the 256 bytes becomes, [256] float32: scaled to 1 in float64, then (x - 0.5) / 0.5 in float32, as
    transformers computes it on the host. Looked up, it is the same to the last bit on every device."""
    scaled = (torch.arange(256, dtype=torch.float64) * (1 / 255)).float()
    return (scaled - 0.5) / 0.5
