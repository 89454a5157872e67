"""Attention of gathered, contiguous keys and values: as matrix products, or PyTorch's fused kernel (SDPA).

On CPUs the fused kernel runs far below what the matrix units give: it multiplies tiles too small to feed
them. Batched products over whole blocks are two to four times as fast for decodes and chunks alike, as
long as the scores of a block fit the cache; :func:`block_size` sees to that. On GPUs the fused kernel
serves half precision; in float32 it would round to TF32, so there too the products are taken one by one.

Shape suffixes: N batched problems (requests x KV heads), M query rows of each (the query heads of one KV
head, folded, for each token), L keys, D head size, W last keys that a bias covers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pymllm_attention_torch.scratch import Scratch

Dense = Callable[[Tensor, Tensor, Tensor, "Tensor | None", float], Tensor]
"""``(q [N, M, D], k [N, L, D], v [N, L, D], bias, scale) -> [N, M, D]`` in q's dtype. bias: float32,
[N or 1, M or 1, W], added to the scaled scores of the last W keys (0, or -inf to mask); None is none."""

FEW_KEYS = 1 << 17
"""With fewer key elements, widening them costs less than two calls."""


def dense_attention(device: torch.device, dtype: torch.dtype) -> Dense:
    """The function for this device and activation dtype."""
    if device.type != "cpu" and dtype != torch.float32:
        return fused
    split = device.type == "cpu" and dtype == torch.bfloat16 and multiplies_bfloat16()
    return MatrixAttention(device, split=split)


def multiplies_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware (otherwise float32 is faster)."""
    check = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(check and check()) and torch.backends.mkldnn.is_available()


def block_size(device: torch.device, heads: int, keys: int) -> int:
    """Query tokens that are best computed at once, so that the scores stay in cache (CPU) or small (GPU)
    and causal blocks skip what lies after them."""
    scores, most = (1 << 21, 128) if device.type == "cpu" else (1 << 26, 512)
    return max(16, min(most, scores // (heads * keys) // 16 * 16))


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """PyTorch's scaled_dot_product_attention, the N problems as heads of one sequence."""
    mask = None
    if bias is not None:
        whole = F.pad(bias, (k.shape[1] - bias.shape[2], 0)).to(q.dtype)
        mask = whole.expand(q.shape[0], q.shape[1], -1)[None]
    return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)[0]


class MatrixAttention:
    """Two batched products and a float32 softmax.

    split: multiply bfloat16 as such. Otherwise, and for every other dtype, all is widened to float32.
    """

    def __init__(self, device: torch.device, *, split: bool) -> None:
        self._split = split
        self._scratch = Scratch(device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """See :data:`Dense`."""
        split = self._split and q.dtype == torch.bfloat16
        if split and k.numel() >= FEW_KEYS:
            scores = self._split_scores(q, k, scale)
        else:
            scores = self._empty("scores", q, k)
            torch.bmm(q.float() * scale, self._wide(k).transpose(1, 2), out=scores)
        if bias is not None:
            scores[:, :, scores.shape[2] - bias.shape[2] :].add_(bias)
        weights = torch.softmax(scores, -1, out=self._empty("weights", q, k))
        if split:
            return torch.bmm(self._empty("narrow", q, k, v.dtype).copy_(weights), v)
        return torch.bmm(weights, self._wide(v)).to(q.dtype)

    def _split_scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Scaled scores in float32 from bfloat16 products.

        One product keeps 8 bits of each score, too few. It is taken twice, the second time with the first
        result subtracted inside the float32 accumulator: the sum of both has 16 bits.
        """
        exact = math.frexp(scale)[0] == 0.5
        if exact:
            q = q * scale
        keys = k.transpose(1, 2)
        high = torch.bmm(q, keys, out=self._empty("narrow", q, k, q.dtype))
        scores = self._empty("scores", q, k).copy_(high)
        scores.add_(high.baddbmm_(q, keys, beta=-1))
        return scores if exact else scores.mul_(scale)

    def _wide(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return x
        return self._scratch.take("wide", tuple(x.shape), torch.float32).copy_(x)

    def _empty(self, name: str, q: Tensor, k: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return self._scratch.take(name, (q.shape[0], q.shape[1], k.shape[1]), dtype)


def fold(q: Tensor, kv_heads: int) -> Tensor:
    """[..., T, H, D] -> [..., K, T * H / K, D]: the query heads of a KV head become rows."""
    return q.unflatten(-2, (kv_heads, -1)).transpose(-4, -3).flatten(-3, -2)


def unfold(out: Tensor, tokens: int) -> Tensor:
    """[..., K, T * H / K, D] -> [..., T, H, D]: the inverse of :func:`fold`."""
    return out.unflatten(-2, (tokens, -1)).transpose(-4, -3).flatten(-3, -2)
