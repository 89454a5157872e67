"""The cache's layout: slots are rows, pages are copied whole, a page takes what is said."""

from __future__ import annotations

import torch

from pymllm.interfaces import AttentionContext, KVGroup
from pymllm_attention_flashinfer.cache import PagedCache

GROUP = KVGroup("full", 2, 3, 8)
CONTEXT = AttentionContext(torch.device("cpu"), torch.float16, 4, {"full": GROUP})


def test_tokens_lie_in_their_slots() -> None:
    cache = PagedCache(GROUP, 5, CONTEXT)
    k, v = torch.randn(2, 3, 3, 8).half()
    cache.write(1, torch.tensor([9, 4, 19]), k, v)
    keys, values = cache.layer(1)
    assert keys.shape == (5, 4, 3, 8)
    for row, (page, offset) in enumerate([(2, 1), (1, 0), (4, 3)]):
        assert torch.equal(keys[page, offset], k[row])
        assert torch.equal(values[page, offset], v[row])


def test_pages_are_copied_in_every_layer() -> None:
    cache = PagedCache(GROUP, 5, CONTEXT)
    cache.data.normal_()
    before = cache.data.clone()
    cache.copy_pages([1, 4], [3, 0])
    assert torch.equal(cache.data[:, :, [3, 0]], before[:, :, [1, 4]])
    assert torch.equal(cache.data[:, :, [1, 2, 4]], before[:, :, [1, 2, 4]])
