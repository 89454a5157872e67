"""Prompts padded to one size, captured in a CUDA graph where there is one, for the attention kit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from pymllm.interfaces import AttentionBatch, GraphKey
from pymllm.testing.attention_rig import Request, Rig, array, assert_close

COLUMNS = 64
"""Pages in a row of the page table."""


class PaddedPrompts:
    """One attention layer over up to ``requests`` prompts of ``tokens`` tokens in all; on a GPU a graph that is
    captured once and replayed, elsewhere the calls that it would hold."""

    def __init__(self, rig: Rig, requests: int, tokens: int) -> None:
        self.rig = rig
        device, layer = rig.device, rig.layers[0]
        self.batch = AttentionBatch(
            query_lens=[tokens],
            context_lens=[tokens],
            query_starts=torch.tensor([0] + [tokens] * requests, dtype=torch.int32, device=device),
            context_lens_d=torch.tensor([tokens] + [0] * (requests - 1), dtype=torch.int32, device=device),
            page_table=torch.zeros(requests, COLUMNS, dtype=torch.int32, device=device),
            slots=torch.zeros(tokens, dtype=torch.int64, device=device),
            graph_key=GraphKey(requests, tokens),
        )
        shapes = {"q": layer.heads, "k": layer.kv_heads, "v": layer.kv_heads, "out": layer.heads}
        self.tensors = {
            name: torch.zeros(tokens, heads, layer.head_dim, dtype=rig.dtype, device=device)
            for name, heads in shapes.items()
        }
        rig.backend.plan(self.batch)
        self._run()
        self._replay: Callable[[], object] = self._run
        if device.type == "cuda":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._run()
            self._replay = graph.replay

    def check(self, parts: Sequence[tuple[Request, int]], tolerance: float) -> None:
        """Compute the next tokens of each request; they must be the reference's."""
        rig, batch = self.rig, self.batch
        batch.query_lens = [count for _, count in parts]
        batch.context_lens = [request.done + count for request, count in parts]
        step = rig.batch(batch.query_lens, batch.context_lens, [request.pages for request, _ in parts])
        used = len(step.slots)
        batch.query_starts.fill_(used)[: len(step.query_starts)] = step.query_starts
        batch.context_lens_d.zero_()[: len(parts)] = step.context_lens_d
        batch.slots.zero_()[:used] = step.slots
        batch.page_table.fill_(7)[: len(parts), : step.page_table.shape[1]] = step.page_table  # 7: of an older step
        for name in "qkv":
            rows = [getattr(request, name)[request.done : request.done + count] for request, count in parts]
            self.tensors[name].fill_(float("nan"))[:used] = rig.put(torch.cat(rows))
        self.tensors["out"].fill_(float("nan"))
        rig.backend.plan(batch)
        self._replay()
        ends = np.cumsum([0, *batch.query_lens])
        for (request, count), (start, end) in zip(parts, pairwise(ends)):
            request.done += count
            assert_close(array(self.tensors["out"][start:end]), rig.expected(request, count), tolerance)

    def _run(self) -> None:
        layer, tensors = self.rig.layers[0], self.tensors
        self.rig.backend.write(layer, tensors["k"], tensors["v"])
        self.rig.backend.attend(layer, tensors["q"], tensors["out"])
