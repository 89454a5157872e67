"""The paged KV cache of a memory group that keeps codes: ``attention.kv_dtype`` int8 and int4.

Layout: [layers, pages, 2, K, S x W + S x 4] bytes. A block holds the codes of a page's tokens for one head, then their
scales; see :mod:`pymllm.layers.kernels.codes`. Blocks have the order of :mod:`pymllm_attention_torch.paged`, so the
indices are the same.

Shape suffixes: as there, and W bytes of a token's codes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pymllm.interfaces import AttentionContext, KVGroup
from pymllm.layers.kernels.codes import SCALE_BYTES, code_dtype, code_width, dequantize, quantize
from pymllm_attention_torch.paged import PagedCache, allocate, token_bytes
from pymllm_attention_torch.scratch import Scratch


class QuantizedCache(PagedCache):
    """Keys and values of all layers of a group, as codes with scales."""

    def __init__(self, group: KVGroup, pages: int, context: AttentionContext, scratch: Scratch) -> None:
        """Raises MemoryError or torch.OutOfMemoryError. The memory is not initialized."""
        assert context.kv_bits is not None, "the cache holds codes"
        self._bits, self._size, self._tokens = context.kv_bits, group.head_dim, context.page_size
        self._width = code_width(group.head_dim, self._bits)
        block = context.page_size * token_bytes(group.head_dim, context)
        self.data = allocate((group.layers, pages, 2, group.kv_heads, block), torch.uint8, context.device)
        self._pages = self.data
        self._blocks = self.data.view(group.layers, -1, block)
        self._scratch = scratch

    def write(self, layer: int, index: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v, [T, K, D] each, quantized from float32. index: from :func:`write_index`."""
        codes, scales = quantize(torch.stack((k, v), 1).view(-1, k.shape[-1]), self._bits)
        block, offset = index // self._tokens, index % self._tokens
        kept_codes, kept_scales = self._parts(self._blocks[layer])
        kept_codes[block, offset] = codes.view(torch.uint8)
        kept_scales[block, offset] = scales.view(torch.uint8).view(-1, SCALE_BYTES)

    def gather(self, layer: int, index: Tensor) -> Tensor:
        """The pages of an index -> [2, B, K, P * S, D], contiguous, float32, valid until the next gather."""
        source = self._blocks[layer]
        blocks = self._scratch.take("gather", (index.numel(), source.shape[1]), torch.uint8)
        torch.index_select(source, 0, index.view(-1), out=blocks)
        codes, scales = self._parts(blocks)
        words = scales.contiguous().view(torch.int32).squeeze(-1)
        numbers = self._scratch.take("widened", (*words.shape, self._size), torch.float32)
        dequantize(codes.view(code_dtype(self._bits)), words, numbers)
        return numbers.view(*index.shape[:3], -1, self._size)

    def _parts(self, blocks: Tensor) -> Sequence[Tensor]:
        """Blocks [N, bytes] -> views of their codes [N, S, W] and scales [N, S, 4], in bytes."""
        codes = self._tokens * self._width
        return blocks[:, :codes].unflatten(1, (-1, self._width)), blocks[:, codes:].unflatten(1, (-1, SCALE_BYTES))
