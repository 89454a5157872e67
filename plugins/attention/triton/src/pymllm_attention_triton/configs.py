"""Launch parameters of the kernels, chosen by shape and device. Nothing is tuned while serving."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class LaunchConfig:
    """rows, keys: of a block (BLOCK_M, BLOCK_N); stages: blocks of keys and values in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Device:
    """What the choice depends on. capability: (9, 0) and so on; processors: streaming multiprocessors."""

    capability: tuple[int, int]
    processors: int


INTERPRETER = Device((0, 0), 1)


@lru_cache
def device_of(device: torch.device) -> Device:
    """The facts of a device. A CPU, on which Triton's interpreter runs, is one that nothing fits better than
    few programs with large blocks."""
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


def decode_config(device: Device, head_dim: int, itemsize: int, group: int) -> LaunchConfig:
    """For :func:`decode_kernel`. group: query heads of a KV head."""
    row_bytes = padded(head_dim) * itemsize
    keys = 64 if row_bytes <= 256 else 32
    return LaunchConfig(padded(group), keys, 4, 3 if row_bytes <= 512 else 2)


def prefill_config(device: Device, head_dim: int, itemsize: int, group: int, longest: int) -> LaunchConfig:
    """For :func:`prefill_kernel`. group: query heads of a KV head; longest: new tokens of a request."""
    wide = padded(head_dim)
    if device == INTERPRETER:
        return LaunchConfig(max(64, padded(group)), 64, 4, 1)
    if itemsize == 4:
        return LaunchConfig(max(16 if wide > 128 else 32, padded(group)), 32, 4, 1)
    few = longest * group <= 64 or wide > 128
    rows = max(64 if few else 128, padded(group))
    if device.capability >= (9, 0):
        return LaunchConfig(rows, 64, 4 if few else 8, 3 if wide <= 128 else 2)
    return LaunchConfig(rows, 64 if wide <= 128 else 32, 4, 2)


def varlen_config(device: Device, head_dim: int, itemsize: int) -> LaunchConfig:
    """For :func:`varlen_kernel`."""
    return prefill_config(device, sum(halves(head_dim)), itemsize, 1, 1 << 20)


def write_rows(device: Device) -> int:
    """Rows (token and head) of a program of :func:`write_kernel`."""
    return 1024 if device == INTERPRETER else 16
