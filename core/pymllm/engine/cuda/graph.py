"""Capturing a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def captured(pool: Any, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
    """Capture what ``work`` launches on the current (side) stream. Returns a call that replays it on the stream that is
    current then, and what ``work`` returned, whose memory belongs to the graph."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    result = work()
    graph.capture_end()
    return graph.replay, result


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Graphs that are freed while another one is captured, as a garbage collection might, end that capture."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
