"""A forward pass captured as CUDA graphs between its attention calls.

Everything between two attentions depends on the number of tokens alone and is captured, padded to a few
sizes; attention itself, whose work depends on how the tokens fall into requests, is launched each time.
That leaves some sixty launches of a prefill step instead of several hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pymllm.engine.cuda.alias import alias
from pymllm.interfaces.attention import AttentionBackend, AttentionLayer
from pymllm.layers.attention import Attention


class Segments:
    """Graphs and, between them, calls. tokens: how many of the padded rows are real, set before ``replay``."""

    def __init__(self, pool: Any) -> None:
        self.tokens = 0
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

    def replay(self, prepare: Callable[[], object]) -> None:
        """Run it all on the current stream. prepare: what the first call between graphs needs; it is done while the
        device computes the first graph."""
        first, *rest = self._parts
        first()
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
    """Stands for a backend while a forward pass is captured: attention is left out of the graphs. It has the one
    method that a layer calls."""

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


@contextmanager
def attention_interrupts(model: nn.Module, segments: Segments) -> Iterator[None]:
    """Inside, the model's attention layers interrupt ``segments`` instead of being captured."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    backends = [layer.backend for layer in layers]
    for layer in layers:
        layer.backend = _Interrupting(layer.backend, segments)  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer, backend in zip(layers, backends):
            layer.backend = backend
