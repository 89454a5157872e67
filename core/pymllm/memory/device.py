"""How much memory a device has, what is free now, and what a piece of work takes at its peak."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from pymllm.memory.cgroup import group_memory


def total_bytes(device: torch.device) -> int:
    """All memory of the device; on a CPU the machine's, or the control group's limit if that is lower."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    machine, group = _meminfo().get("MemTotal", 0), group_memory()
    return machine if group is None else min(machine, group.limit)


def available_bytes(device: torch.device) -> int:
    """What can still be allocated. A GPU that shares the machine's memory (Jetson) has what the machine
    has, reclaimable file cache included, which its own free count leaves out."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if _is_integrated(device):
            return max(free, _meminfo().get("MemAvailable", 0)) + cached
        return free + cached
    machine, group = _meminfo().get("MemAvailable", 0), group_memory()
    return machine if group is None else min(machine, group.free)


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Run ``work`` and return how far memory in use rose above its level before. On a CPU this is the
    resident set of the process, 0 where the system does not tell."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    gc.collect()  # what dies during the work would hide what it takes
    _reset_peak()
    before = _status("VmRSS")
    work()
    return max(0, _status("VmHWM") - before)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception says that a device has no memory left (on a CPU, PyTorch has no class for it)."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _is_integrated(device: torch.device) -> bool:
    return bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))


def _meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes; where there is none, an estimate of the total."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return _sysconf()
    fields = (line.split() for line in lines)
    return {parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in fields if len(parts) >= 2}


def _sysconf() -> dict[str, int]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"MemTotal": total, "MemAvailable": total // 2}


def _status(name: str) -> int:
    """A line of /proc/self/status in bytes; elsewhere the peak resident set."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _reset_peak() -> None:
    """Let VmHWM start again from the present resident set (Linux; needs no privilege for oneself)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return
