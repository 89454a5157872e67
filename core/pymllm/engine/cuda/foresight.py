"""What all graphs of a runner will take, from capturing a few of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

SAMPLED = 3
"""Smaller sizes of each kind that are captured to see what one more takes."""


class Captures(Protocol):
    """Graphs of one kind. sizes: ascending."""

    sizes: list[int]

    def forget(self) -> None:
        """Drop what was captured."""


def foresee(
    kinds: Sequence[Captures],
    capture: Callable[[Captures, list[int]], None],
    taken: Callable[[], int],
    release: Callable[[], None],
) -> int:
    """Bytes that capturing all sizes of all kinds will take.

    The largest size of each kind determines the memory that the smaller ones share; each of those takes what a graph
    itself does. What a device takes but once, as when it loads a kernel, is not counted: it is in use already.

    capture: captures sizes of a kind. taken: bytes of the device in use. release: gives back what graphs that were
    dropped took. Everything is dropped again.
    """
    for kind in kinds:
        capture(kind, kind.sizes[-1:])
        capture(kind, kind.sizes[:-1][:SAMPLED])
    _drop(kinds, release)
    start = taken()
    for kind in kinds:
        capture(kind, kind.sizes[-1:])
    total = taken() - start
    for kind in kinds:
        few, before = kind.sizes[:-1][:SAMPLED], taken()
        if few:
            capture(kind, few)
            total += (taken() - before) * (len(kind.sizes) - 1) // len(few)
    _drop(kinds, release)
    return max(0, total)


def _drop(kinds: Sequence[Captures], release: Callable[[], None]) -> None:
    for kind in kinds:
        kind.forget()
    release()
