"""What the attention kit runs its cases with: layers, requests with known keys and values, and steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pymllm.interfaces import AttentionBackend, AttentionBatch, AttentionContext, KVDtype, KVGroup
from pymllm.testing.attention_batch import make_attention_batch
from pymllm.testing.attention_reference import Array, attention, round_to_bf16, round_to_codes, round_to_e4m3

ROUNDED: Mapping[KVDtype, Callable[[Array], Array]] = {
    KVDtype.auto: lambda x: x,
    KVDtype.bf16: round_to_bf16,
    KVDtype.fp8: round_to_e4m3,
    KVDtype.int8: lambda x: round_to_codes(x, 8),
    KVDtype.int4: lambda x: round_to_codes(x, 4),
}
"""What a cache makes of keys or values, [T, K, D]."""


@dataclass
class Layer:
    """An ``AttentionLayer``."""

    group: str
    index: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    q_norm: Any = None
    k_norm: Any = None
    rope: Any = None


@dataclass
class Request:
    """One request. q: [T, H, D]; k, v: [T, K, D], on the CPU; pages: its own, in order.
    done: tokens that were computed already."""

    q: Tensor
    k: Tensor
    v: Tensor
    pages: list[int]
    done: int = 0


def array(x: Tensor) -> Array:
    """A tensor in float64 NumPy."""
    return x.detach().cpu().double().numpy()


class Rig:
    """A backend with one group of two layers, every slot of its cache filled with NaN, and random data."""

    def __init__(
        self, backend: AttentionBackend, heads: int, pages: int, *, scale: float | None = None, seed: int = 0
    ) -> None:
        self.backend = backend
        context: AttentionContext = backend.context
        self.device, self.dtype, self.page_size = context.device, context.dtype, context.page_size
        (group,) = context.groups.values()
        self.group: KVGroup = group
        scale = group.head_dim**-0.5 if scale is None else scale
        self.layers = [Layer(group.name, i, heads, group.kv_heads, group.head_dim, scale) for i in range(group.layers)]
        self.pages = pages
        self._free = list(range(1, pages))
        self._random = np.random.default_rng(seed)
        self._random.shuffle(self._free)
        backend.allocate(group, pages)
        self.poison(range(pages))

    def poison(self, pages: Sequence[int]) -> None:
        """Fill whole pages with NaN, in every layer."""
        tokens = len(pages) * self.page_size
        self.backend.plan(self.batch([tokens], [tokens], [pages]))
        nothing = torch.full((tokens, self.group.kv_heads, self.group.head_dim), float("nan"))
        for layer in self.layers:
            self.backend.write(layer, self.put(nothing), self.put(nothing))

    def batch(self, query_lens: Sequence[int], context_lens: Sequence[int], pages: Sequence[Any]) -> AttentionBatch:
        """A batch on the backend's device."""
        return make_attention_batch(query_lens, context_lens, pages, self.page_size, self.device)

    def put(self, x: Tensor) -> Tensor:
        """x on the backend's device, in its dtype."""
        return x.to(self.device, self.dtype)

    def random(self, *shape: int) -> Tensor:
        """Normally distributed values that the dtype holds exactly, on the CPU. For a cache of codes, values that
        bfloat16 holds: in float32 as in float64, none is so near to the middle of two codes that rounding decides."""
        values = torch.from_numpy(self._random.standard_normal(shape)).to(self.dtype)
        return values if self.backend.context.kv_bits is None else values.bfloat16().to(self.dtype)

    def take(self, tokens: int) -> list[int]:
        """Free pages for that many tokens, in no order."""
        return [self._free.pop() for _ in range(-(-tokens // self.page_size))]

    def request(self, tokens: int, *, sharpness: float = 1.0, pages: list[int] | None = None) -> Request:
        """A request of that many tokens in all, nothing computed yet."""
        size, kv_heads = self.group.head_dim, self.group.kv_heads
        q = (self.random(tokens, self.layers[0].heads, size) * sharpness).to(self.dtype)
        k, v = self.random(tokens, kv_heads, size), self.random(tokens, kv_heads, size)
        return Request(q, k, v, self.take(tokens) if pages is None else pages)

    def step(self, parts: Sequence[tuple[Request, int]], layer: int = 0, padded_rows: int = 0) -> list[Array]:
        """Compute the next tokens of each request, together -> [tokens, H, D] each.

        padded_rows: rows without a request that are appended, as a CUDA graph's are: their page is 0.
        """
        new = [slice(request.done, request.done + count) for request, count in parts]
        query_lens = [count for _, count in parts] + [1] * padded_rows
        context_lens = [part.stop for part in new] + [1] * padded_rows
        pages = [request.pages for request, _ in parts] + [[0]] * padded_rows
        self.backend.plan(self.batch(query_lens, context_lens, pages))
        q, k, v = (self._flat([getattr(r, x)[part] for (r, _), part in zip(parts, new)], padded_rows) for x in "qkv")
        self.backend.write(self.layers[layer], k, v)
        out = self.attend(self.layers[layer], q)
        for request, count in parts:
            request.done += count
        ends = np.cumsum([0, *query_lens])
        return [array(out[start:end]) for start, end in pairwise(ends)][: len(parts)]

    def attend(self, layer: Layer, q: Tensor) -> Tensor:
        """The planned batch's attention of q, [T, H, D] -> [T, H, D], which held NaN before."""
        out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
        self.backend.attend(layer, q, out)
        return out

    def _flat(self, rows: list[Tensor], padded_rows: int) -> Tensor:
        padding = torch.full((padded_rows, *rows[0].shape[1:]), float("nan"), dtype=self.dtype)
        return self.put(torch.cat([*rows, padding]))

    def expected(self, request: Request, count: int) -> Array:
        """The reference of the last ``count`` computed tokens of a request."""
        done = request.done
        q, k, v = array(request.q[done - count : done]), array(request.k[:done]), array(request.v[:done])
        return attention(q, self.kept(k), self.kept(v), self.layers[0].scale)

    def kept(self, x: Array) -> Array:
        """Keys or values, [T, K, D], as the cache keeps them."""
        return ROUNDED[self.backend.context.kv_dtype](x)

    def check(self, parts: Sequence[tuple[Request, int]], tolerance: float, **options: int) -> list[Array]:
        """A step whose results must be the reference's. Returns them."""
        found = self.step(parts, **options)
        for (request, count), out in zip(parts, found):
            assert_close(out, self.expected(request, count), tolerance)
        return found


def assert_close(found: Array, expected: Array, tolerance: float) -> None:
    """Largest difference at most ``tolerance`` times the largest expected value (or 1, if that is more)."""
    limit = tolerance * max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(found - expected).max())
    assert difference <= limit, f"off by {difference:.3g}, allowed is {limit:.3g}"


def tensor_bytes() -> int:
    """Bytes of all tensors alive in this process."""
    gc.collect()
    storages = {}
    for item in gc.get_objects():
        if issubclass(type(item), Tensor) and item.layout == torch.strided and item.device.type != "meta":
            storage = item.untyped_storage()
            storages[item.device, storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
