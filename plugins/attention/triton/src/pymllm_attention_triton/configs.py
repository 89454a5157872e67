"""Launch parameters of the kernels, chosen by shape and device. Nothing is tuned while serving.

The choices were measured on an H200 (benchmarks/sweep.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton


@dataclass(frozen=True)
class LaunchConfig:
    """rows, keys: of a block (BLOCK_M, BLOCK_N), rows being query heads in decode; stages: blocks of keys and values in
    flight; registers: the most a thread may have, 0: the compiler's choice; lanes: requests that a program looks at
    together when it searches its own; programs: of decode, that a multiprocessor should have at least, so that enough
    reads are in flight."""

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int = 0
    lanes: int = 128
    programs: int = 8


@dataclass(frozen=True)
class Device:
    """What the choice depends on. capability: (9, 0) and so on; processors: streaming multiprocessors."""

    capability: tuple[int, int]
    processors: int


SMALLEST_OPERAND = 8 if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 4) else 16
"""The fewest columns of a right operand: what the matrix units take, but older Triton asks for more."""

INTERPRETER = Device((0, 0), 1)
"""A CPU, on which Triton's interpreter runs: few programs with large blocks suit it."""

BATCH_SIZES = (1, 8, 33)
"""From these numbers of requests on, decode has other parameters."""

CONTEXTS = (1, 1025, 4097)
"""From these context lengths on, prefill has other parameters."""


@lru_cache
def device_of(device: torch.device) -> Device:
    """The facts of a device."""
    if device.type != "cuda":
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    return Device((properties.major, properties.minor), properties.multi_processor_count)


def padded(size: int) -> int:
    """The next power of two, at least 16 (the smallest operand of a matrix unit)."""
    return max(16, 1 << (size - 1).bit_length())


def halves(size: int) -> tuple[int, int]:
    """The columns that a head is computed as: one power of two, or two whose sum is less."""
    whole = padded(size)
    rest = padded(size - whole // 2)
    return (whole // 2, rest) if whole > 16 and rest < whole // 2 else (whole, 0)


def decode_config(head_dim: int, itemsize: int, group: int, requests: int, bits: int = 0) -> LaunchConfig:
    """For :func:`decode_kernel`. group: query heads of a KV head; requests: in the batch; bits: of the codes that the
    cache holds.

    One warp with a block of 8 KiB reads fastest when there are many; the few programs of a small batch take more. Codes
    take instructions rather than bytes: twice as many keys a block spread the cost of a block, more programs keep all
    the warps that fit at work until the end, and the query heads, which are columns there, are padded less.
    """
    rows, wide = padded(group), padded(head_dim)
    keys, warps = max(16, 8192 // (wide * itemsize)), max(1, min(8, rows * wide // 2048))
    lanes = 32 if requests < BATCH_SIZES[2] else 128
    columns = max(SMALLEST_OPERAND, 1 << (group - 1).bit_length()) if bits else rows
    if bits and wide <= 128 and itemsize == 2:
        if requests < BATCH_SIZES[1]:
            return LaunchConfig(columns, 128, 4, 2, lanes=lanes, programs=24)
        programs = 8 if requests < BATCH_SIZES[2] else 16
        return LaunchConfig(columns, 64, warps, 2, lanes=lanes, programs=programs)
    if requests < BATCH_SIZES[1]:
        return LaunchConfig(columns, 2 * keys, max(2, warps), 2, lanes=lanes)
    return LaunchConfig(columns, keys, warps, 2, lanes=lanes)


def prefill_config(device: Device, head_dim: int, itemsize: int, group: int, longest: int) -> LaunchConfig:
    """For :func:`prefill_kernel`. group: query heads of a KV head; longest: context of a request, in tokens."""
    wide, least = padded(head_dim), padded(group)
    if device == INTERPRETER:
        return LaunchConfig(max(64, least), 64, 4, 1)
    if itemsize == 4:
        return LaunchConfig(max(16 if wide > 128 else 32, least), 32, 4, 1)
    if device.capability < (9, 0):
        return LaunchConfig(max(64, least), 64 if wide <= 128 else 32, 4, 2)
    if longest < CONTEXTS[1] or wide > 128:
        return LaunchConfig(max(64, least), 64, 4, 2)
    if longest < CONTEXTS[2] or wide < 128:
        return LaunchConfig(max(128, least), 64, 8, 2)
    return LaunchConfig(max(128, least), 128, 8, 3)


def varlen_config(device: Device, head_dim: int, itemsize: int) -> LaunchConfig:
    """For :func:`varlen_kernel`."""
    size = sum(halves(head_dim))
    if device.capability < (9, 0) or itemsize == 4 or size > 128:
        return prefill_config(device, size, itemsize, 1, 1)
    return LaunchConfig(128, 64, 4, 3) if size < 128 else LaunchConfig(128, 64, 8, 2)


def write_rows(device: Device) -> int:
    """Rows (token and head) of a program of :func:`write_kernel`."""
    return 1024 if device == INTERPRETER else 16
