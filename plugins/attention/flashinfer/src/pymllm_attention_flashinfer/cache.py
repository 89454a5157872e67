"""The paged KV cache of one memory group.

Layout: [layers, 2, pages, S, K, D], keys then values, S tokens of a page, K heads, D components: "NHD" as
FlashInfer calls it. A slot (page * S + offset) is a row of a layer's keys, and of its values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pymllm.interfaces import AttentionContext, KVGroup


class PagedCache:
    """Keys and values of all layers of a group, one allocation."""

    def __init__(self, group: KVGroup, pages: int, context: AttentionContext) -> None:
        """Raises torch.OutOfMemoryError. The memory is not initialized."""
        shape = (group.layers, 2, pages, context.page_size, group.kv_heads, group.head_dim)
        self.data = torch.empty(shape, dtype=context.dtype, device=context.device)
        self._layers: list[tuple[Tensor, Tensor]] = [(layer[0], layer[1]) for layer in self.data]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, [pages, S, K, D] each."""
        return self._layers[index]

    def write(self, index: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v, [T, K, D] each, in a layer's slots [T]."""
        for cache, values in zip(self._layers[index], (k, v)):
            cache.flatten(0, 1).index_copy_(0, slots, values)

    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages in every layer."""
        device = self.data.device
        pages = self.data.index_select(2, torch.tensor(source, device=device))
        self.data.index_copy_(2, torch.tensor(target, device=device), pages)
