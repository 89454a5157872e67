"""The paged KV cache of one memory group: its layout, and how pages are written, gathered and copied.

Layout: [layers, pages, 2, K, S, D], keys then values. The tokens of a page lie together for each head, so
gathering a request's pages in the order of an index yields [2, requests, K, tokens, D], the operands of a
batched product, in blocks of S x D elements, without a transposition. A cache that is kept in fewer bits than
activations have is widened where it is gathered.

Shape suffixes: T tokens, K key/value heads, S page size, D head size, B requests, P pages of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pymllm.interfaces import AttentionContext, KVGroup
from pymllm.layers.kernels.codes import vector_bytes
from pymllm.layers.kernels.storage import rows_of, stored
from pymllm_attention_torch.scratch import Scratch


def token_bytes(head_dim: int, context: AttentionContext) -> int:
    """Bytes that a token's key (or value) of one head takes in the cache."""
    bits = context.kv_bits
    return head_dim * context.cache_dtype.itemsize if bits is None else vector_bytes(head_dim, bits)


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that is not initialized. Raises MemoryError or torch.OutOfMemoryError."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        if device.type == "cpu":
            raise MemoryError(str(error)) from error
        raise


class PagedCache:
    """Keys and values of all layers of a group."""

    def __init__(self, group: KVGroup, pages: int, context: AttentionContext, scratch: Scratch) -> None:
        """Raises MemoryError or torch.OutOfMemoryError. The memory is not initialized."""
        shape = (group.layers, pages, 2, group.kv_heads, context.page_size, group.head_dim)
        self.data = allocate(shape, context.cache_dtype, context.device)
        self._dtype = context.dtype
        self._scratch = scratch
        self._pages = rows_of(self.data)
        self._rows = self._pages.view(group.layers, -1, group.head_dim)
        self._blocks = self._pages.view(group.layers, -1, context.page_size * group.head_dim)

    def write(self, layer: int, index: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v, [T, K, D] each. index: from :func:`write_index`."""
        rows = stored(torch.stack((k, v), 1), self.data.dtype).view(-1, k.shape[-1])
        self._rows[layer].index_copy_(0, index, rows_of(rows))

    def gather(self, layer: int, index: Tensor) -> Tensor:
        """The pages of an index from :func:`gather_index` -> [2, B, K, P * S, D], contiguous, in the dtype of
        activations, valid until the next gather."""
        source = self._blocks[layer]
        blocks = self._scratch.take("gather", (index.numel(), source.shape[1]), source.dtype)
        torch.index_select(source, 0, index.view(-1), out=blocks)
        blocks = blocks.view(self.data.dtype)
        if blocks.dtype != self._dtype:
            blocks = self._scratch.take("widened", tuple(blocks.shape), self._dtype).copy_(blocks)
        return blocks.view(*index.shape[:3], -1, self.data.shape[-1])

    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages in every layer."""
        device = self._pages.device
        pages = self._pages.index_select(1, torch.tensor(source, device=device))
        self._pages.index_copy_(1, torch.tensor(target, device=device), pages)


def write_index(slots: Tensor, heads: int, page_size: int) -> Tensor:
    """Rows of a layer, [T * 2 * K], where tokens with these slots keep their heads. slots: [T] int64."""
    page, offset = slots // page_size, slots % page_size
    part = torch.arange(2 * heads, device=slots.device)
    return ((page[:, None] * 2 * heads + part) * page_size + offset[:, None]).view(-1)


def gather_index(pages: Tensor, heads: int) -> Tensor:
    """Blocks of a layer, [2, B, K, P] int64, that hold the pages [B, P] of B requests."""
    part = torch.arange(2, device=pages.device).view(2, 1, 1, 1)
    head = torch.arange(heads, device=pages.device).view(1, 1, heads, 1)
    return (pages.long()[None, :, None, :] * 2 + part) * heads + head
