"""A forward pass captured as CUDA graphs between its attention calls.

Everything between two attentions depends on the number of tokens alone and is captured, padded to a few
sizes; attention itself, whose work depends on how the tokens fall into requests, is launched each time, and so is
what puts features of media into their rows. That leaves some sixty launches of a prefill step instead of several
hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pymllm.engine.cuda.alias import alias
from pymllm.interfaces.attention import AttentionBackend, AttentionLayer
from pymllm.interfaces.media import MediaRows
from pymllm.layers.attention import Attention
from pymllm.layers.media import Entry, MediaPoint
from pymllm.layers.varlen import VarlenAttention


class Segments:
    """Graphs and, between them, calls.

    What is set before ``replay``, for these: tokens: how many of the padded rows are real. starts: row bounds of packed
    sequences. media: what stands in rows of the batch.
    """

    def __init__(self, pool: Any) -> None:
        self.tokens = 0
        self.starts: Sequence[int] = ()
        self.media: MediaRows | None = None
        self._pool = pool
        self._parts: list[Callable[[], object]] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture what is launched inside on the current (side) stream."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    def interrupt(self, call: Callable[[], object]) -> None:
        """End the present graph, let ``call`` be made at this place in every replay, and begin the next."""
        self._end()
        self._parts.append(call)
        self._begin()

    def replay(self, prepare: Callable[[], object] | None = None) -> None:
        """Run it all on the current stream. prepare: what the calls between graphs need; it is done while the device
        computes the first graph."""
        first, *rest = self._parts
        first()
        if prepare is not None:
            prepare()
        for part in rest:
            part()

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        assert self._graph is not None
        self._graph.capture_end()
        self._parts.append(self._graph.replay)
        self._graph = None


class _Interrupting:
    """Stands for a backend while a forward pass is captured: attention is left out of the graphs. It has the
    methods that layers call."""

    def __init__(self, backend: AttentionBackend, segments: Segments) -> None:
        self._backend = backend
        self._segments = segments

    def forward(self, layer: AttentionLayer, qkv: Tensor, positions: Tensor) -> Tensor:
        q = self._backend.produce(layer, qkv, positions)
        out = torch.empty_like(q)
        queries, answers = alias(q), alias(out)

        def attend() -> None:
            real = self._segments.tokens
            self._backend.attend(layer, queries[:real], answers[:real])

        self._segments.interrupt(attend)
        return out.view(-1, layer.heads * layer.head_dim)

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Sequence[int], scale: float) -> None:
        padded = [alias(tensor) for tensor in (q, k, v, out)]

        def attend() -> None:
            q, k, v, out = (tensor[: self._segments.tokens] for tensor in padded)
            self._backend.varlen(q, k, v, out, self._segments.starts, scale)

        self._segments.interrupt(attend)


def _interrupting_entry(segments: Segments, entry: Entry, h: Tensor, _: MediaRows) -> None:
    """Stands for a media point's ``entry``."""
    static = alias(h)

    def call() -> None:
        if segments.media is not None:
            entry(static, segments.media)

    segments.interrupt(call)


@contextmanager
def interruptions(model: nn.Module, segments: Segments) -> Iterator[None]:
    """Inside, what cannot be captured interrupts ``segments``: the model's attention layers, and features of media on
    their way into the decoder."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, (Attention, VarlenAttention)):
                stack.enter_context(_replaced(module, "backend", _Interrupting(module.backend, segments)))
            elif isinstance(module, MediaPoint):
                stack.enter_context(_replaced(module, "entry", partial(_interrupting_entry, segments, module.entry)))
        yield


@contextmanager
def _replaced(module: nn.Module, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
