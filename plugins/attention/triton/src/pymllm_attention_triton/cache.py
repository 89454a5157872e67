"""The paged KV cache of one memory group: its layout and whole-page copies.

Layout: [layers, pages, K, 2, S, D] (K key/value heads, keys then values, S page size, D head size). What a
decode program reads of a page, the keys and values of one head, is one contiguous stretch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pymllm.interfaces import AttentionContext, KVGroup
from pymllm.layers.kernels.storage import kernel_cache, rows_of


class PagedCache:
    """Keys and values of all layers of a group. ``page_stride`` and ``head_stride`` (elements) are those of
    the views :meth:`layer` returns; their token stride is D."""

    data: Tensor
    """The whole of it, in the cache's dtype."""

    def __init__(self, group: KVGroup, pages: int, context: AttentionContext) -> None:
        """Raises MemoryError or torch.OutOfMemoryError. The memory is not initialized."""
        shape = (group.layers, pages, group.kv_heads, 2, context.page_size, group.head_dim)
        self.data = torch.empty(shape, dtype=context.cache_dtype, device=context.device)
        self.page_stride = self.data.stride(1)
        self.head_stride = self.data.stride(2)
        self.page_size = context.page_size
        self._layers = [(layer[:, :, 0], layer[:, :, 1]) for layer in kernel_cache(self.data)]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Views of a layer's keys and values, [pages, K, S, D] each, as kernels take them."""
        return self._layers[index]

    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages in every layer."""
        device, data = self.data.device, rows_of(self.data)
        rows, places = (torch.tensor(pages).to(device, non_blocking=True) for pages in (source, target))
        data.index_copy_(1, places, data.index_select(1, rows))
