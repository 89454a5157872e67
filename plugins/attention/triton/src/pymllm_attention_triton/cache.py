"""The paged KV cache of one memory group: its layout and whole-page copies.

Layout: [layers, pages, K, 2, S, D] (K key/value heads, keys then values, S page size, D head size). What a
decode program reads of a page, the keys and values of one head, is one contiguous stretch. Of a cache of codes
(:mod:`pymllm.layers.kernels.codes`) that stretch is [2, S, W] bytes of codes, then [2, S] scales of four bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pymllm.interfaces import AttentionContext, KVGroup
from pymllm.layers.kernels.codes import SCALE_BYTES, code_dtype, code_width, vector_bytes
from pymllm.layers.kernels.storage import kernel_cache, rows_of


def token_bytes(head_dim: int, context: AttentionContext) -> int:
    """Bytes that a token's key (or value) of one head takes in the cache."""
    bits = context.kv_bits
    return head_dim * context.cache_dtype.itemsize if bits is None else vector_bytes(head_dim, bits)


class PagedCache:
    """Keys and values of all layers of a group. ``page_stride`` and ``head_stride`` (elements; of codes, bytes) are
    those of the views :meth:`layer` returns; their token stride is D, or W. bits: of codes, 0 where it holds numbers.
    """

    data: Tensor
    """The whole of it: in the cache's dtype, or bytes."""

    def __init__(self, group: KVGroup, pages: int, context: AttentionContext) -> None:
        """Raises MemoryError or torch.OutOfMemoryError. The memory is not initialized."""
        self.page_size = context.page_size
        self.bits = context.kv_bits or 0
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._scales: list[tuple[Tensor, Tensor]] = []
        self._words: list[Tensor] = []
        if self.bits:
            self._make_codes(group, pages, context)
        else:
            shape = (group.layers, pages, group.kv_heads, 2, context.page_size, group.head_dim)
            self.data = torch.empty(shape, dtype=context.cache_dtype, device=context.device)
            self._layers = [(layer[:, :, 0], layer[:, :, 1]) for layer in kernel_cache(self.data)]
        self.page_stride = self.data.stride(1)
        self.head_stride = self.data.stride(2)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Views of a layer's keys and values, [pages, K, S, D] each (W for D of codes), as kernels take them."""
        return self._layers[index]

    def rows(self, index: int) -> Tensor:
        """A layer's keys as attention kernels take them: as :meth:`layer` says, of codes two bytes in an int16."""
        return self._words[index] if self.bits else self._layers[index][0]

    def scales(self, index: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Views of the scales of a layer's keys and values, [pages, K, S] int32 each; of a cache of numbers, None."""
        return self._scales[index] if self.bits else (None, None)

    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages in every layer."""
        device, data = self.data.device, rows_of(self.data)
        rows, places = (torch.tensor(pages).to(device, non_blocking=True) for pages in (source, target))
        data.index_copy_(1, places, data.index_select(1, rows))

    def _make_codes(self, group: KVGroup, pages: int, context: AttentionContext) -> None:
        width, tokens = code_width(group.head_dim, self.bits), context.page_size
        stretch = 2 * tokens * token_bytes(group.head_dim, context)
        shape = (group.layers, pages, group.kv_heads, stretch)
        self.data = torch.empty(shape, dtype=torch.uint8, device=context.device)
        codes = self.data[..., : 2 * tokens * width].view(code_dtype(self.bits)).unflatten(3, (2, tokens, width))
        scales = self.data.view(torch.int32)[..., 2 * tokens * width // SCALE_BYTES :].unflatten(3, (2, tokens))
        self._layers = [(layer[:, :, 0], layer[:, :, 1]) for layer in codes]
        self._words = [keys.view(torch.int16) for keys, _ in self._layers]
        self._scales = [(layer[:, :, 0], layer[:, :, 1]) for layer in scales]
