"""Facts of this machine for ``pymllm doctor``. What cannot be found out is left out, never guessed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "sve",
    "bf16",
    "i8mm",
)
"""CPU features that decide how fast matrix products are, as the kernel names them (x86, then Arm)."""

LIBRARIES = ("torch", "transformers", "triton", "flashinfer-python", "modelscope")
"""Distributions whose version, or absence, explains what can run."""

_GIB = 1024**3


def facts() -> dict[str, Any]:
    """Python, platform, CPU, memory, libraries, CUDA, nvcc; sizes in bytes."""
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cpu": _cpu(),
        "memory": _memory(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "cuda": _cuda(),
        "nvcc": _nvcc(),
    }


def rows(machine: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts as lines of two columns."""
    cpu, memory = machine["cpu"], machine["memory"]
    flags = " ".join(cpu["flags"]) or "no wide vector units known"
    lines = [
        ("python", machine["python"]),
        ("platform", machine["platform"]),
        ("cpu", f"{cpu['model']}, {cpu['cores']} cores, {flags}"),
        ("memory", ", ".join(f"{size / _GIB:.1f} GiB {what}" for what, size in memory.items()) or "unknown"),
    ]
    lines += [(name, found or "not installed") for name, found in machine["libraries"].items()]
    return [*lines, *_cuda_rows(machine["cuda"]), ("nvcc", machine["nvcc"] or "not found")]


def _cuda_rows(cuda: dict[str, Any]) -> list[tuple[str, str]]:
    if not cuda["devices"]:
        return [("cuda", f"no device: {cuda['reason']}")]
    lines = [("cuda", f"runtime {cuda['runtime']}, driver {cuda['driver'] or 'unknown'}")]
    for index, device in enumerate(cuda["devices"]):
        size = f"{device['memory'] / _GIB:.1f} GiB, {device['free'] / _GIB:.1f} GiB free"
        lines.append((f"cuda:{index}", f"{device['name']}, compute capability {device['capability']}, {size}"))
    return lines


def _cpu() -> dict[str, Any]:
    info = _read("/proc/cpuinfo")
    name = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", info, re.MULTILINE)
    words = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    present = set(words[1].split()) if words else set()
    return {
        "model": name[1].strip() if name else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "flags": [flag for flag in FLAGS if flag in present],
    }


def _memory() -> dict[str, int]:
    sizes: dict[str, int] = {}
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        sizes["total"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    if available:
        sizes["available"] = int(available[1]) * 1024
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        sizes["allowed to this container"] = int(limit)
    return sizes


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _cuda() -> dict[str, Any]:
    result: dict[str, Any] = {"devices": [], "runtime": None, "driver": None, "reason": ""}
    try:
        import torch

        result["runtime"] = torch.version.cuda
        if not torch.cuda.is_available():
            built = torch.version.cuda is not None
            result["reason"] = "none is visible" if built else "this torch is built without CUDA"
            return result
        result["driver"] = _driver()
        result["devices"] = [_device(torch, index) for index in range(torch.cuda.device_count())]
    except Exception as error:  # a broken torch or driver is what a doctor is asked about
        result["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return result


def _device(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": properties.total_memory,
        "free": torch.cuda.mem_get_info(index)[0],
    }


def _driver() -> str | None:
    listed = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0].strip()
    if listed:
        return listed
    match = re.search(r"Kernel Module.*?(\d+\.\d+[\d.]*)", _read("/proc/driver/nvidia/version"))
    return match[1] if match else None


def _nvcc() -> str | None:
    match = re.search(r"release ([\d.]+)", _output("nvcc", "--version"))
    return f"{match[1]} ({shutil.which('nvcc')})" if match else None


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
