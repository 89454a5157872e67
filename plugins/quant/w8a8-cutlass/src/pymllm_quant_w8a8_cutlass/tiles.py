"""The tile shapes that CUTLASS kernels are built with, per architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """source: a file of csrc. m, n: rows of x and of W that a program makes the products of. options: macros that the
    source takes besides."""

    source: str
    m: int
    n: int
    options: tuple[tuple[str, int], ...]

    @property
    def macros(self) -> Mapping[str, int]:
        """What the source is compiled with."""
        return {"W8A8_M": self.m, "W8A8_N": self.n, **dict(self.options)}

    def __str__(self) -> str:
        told = ", ".join(f"{name.removeprefix('W8A8_').lower()} {value}" for name, value in self.options)
        return f"{self.m}x{self.n} ({told})"


def _hopper(m: int, n: int, *, cluster: int, pingpong: bool) -> Tile:
    options = {"W8A8_CLUSTER": cluster, "W8A8_PINGPONG": int(pingpong)}
    return Tile("sm90.cu", m, n, tuple(options.items()))


def _ampere(m: int, n: int, *, warp_m: int, warp_n: int, stages: int) -> Tile:
    options = {"W8A8_K": 64, "W8A8_WARP_M": warp_m, "W8A8_WARP_N": warp_n, "W8A8_STAGES": stages}
    return Tile("sm80.cu", m, n, tuple(options.items()))


HOPPER = (
    _hopper(64, 128, cluster=1, pingpong=True),
    _hopper(128, 128, cluster=1, pingpong=True),
    _hopper(128, 128, cluster=2, pingpong=True),
    _hopper(256, 128, cluster=2, pingpong=False),
)

# 163 KiB of shared memory a program.
LARGE_AMPERE = (
    _ampere(64, 128, warp_m=32, warp_n=64, stages=6),
    _ampere(128, 128, warp_m=64, warp_n=64, stages=5),
    _ampere(128, 256, warp_m=64, warp_n=64, stages=4),
)

# 99 KiB of shared memory a program.
SMALL_AMPERE = (
    _ampere(64, 128, warp_m=32, warp_n=64, stages=4),
    _ampere(128, 128, warp_m=64, warp_n=64, stages=3),
    _ampere(128, 256, warp_m=64, warp_n=64, stages=3),
)

TILES: Mapping[tuple[int, int], tuple[Tile, ...]] = {
    (8, 0): LARGE_AMPERE,
    (8, 6): SMALL_AMPERE,
    (8, 7): LARGE_AMPERE,
    (8, 9): SMALL_AMPERE,
    (9, 0): HOPPER,
}
"""By compute capability, from the smallest to the largest. Triton serves what is not here."""
