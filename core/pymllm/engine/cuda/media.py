"""Encoding images and videos: a tower's stack, replayed in segments where there is too little work to hide launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pymllm.engine.cuda.alias import alias
from pymllm.engine.cuda.segments import Segments, interruptions
from pymllm.interfaces.attention import AttentionBackend
from pymllm.layers.varlen import VarlenStack


class MediaGraphs:
    """The replay of a stack, padded to some numbers of rows. sizes: these, rising."""

    def __init__(self, stack: VarlenStack, attention: AttentionBackend, sizes: list[int]) -> None:
        self._stack = stack
        self.sizes = [size for size in sizes if size % stack.merged == 0]
        most, context = max(self.sizes, default=0), attention.context
        self._h = torch.zeros(most, stack.width, dtype=context.dtype, device=context.device)
        self._cos_sin = torch.zeros(most, stack.angles, device=context.device)
        self._segments: dict[int, tuple[Segments, Tensor]] = {}
        stack.replay = self

    def capture(self, size: int, pool: Any) -> None:
        """Capture a size, after all larger ones. On a side stream."""
        h, cos_sin, starts = self._h[:size].zero_(), self._cos_sin[:size], [0, size]
        self._stack.compute(h, cos_sin, starts)  # compile and settle
        torch.cuda.current_stream().synchronize()
        segments = Segments(pool)
        with interruptions(self._stack, segments), segments.capture():
            features = self._stack.compute(h, cos_sin, starts)
        self._segments[size] = (segments, alias(features))

    def forget(self) -> None:
        """Drop what was captured."""
        self._segments.clear()

    def __call__(self, h: Tensor, cos_sin: Tensor, starts: Sequence[int]) -> Tensor:
        """See :class:`VarlenStack`."""
        rows = len(h)
        size = next((size for size in self.sizes if size >= rows and size in self._segments), None)
        if size is None:
            return self._stack.compute(h, cos_sin, starts)
        self._h[:rows].copy_(h)
        self._cos_sin[:rows].copy_(cos_sin)
        segments, features = self._segments[size]
        segments.tokens, segments.starts = rows, starts
        segments.replay()
        return features[: rows // self._stack.merged].clone()
