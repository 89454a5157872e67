"""Builds our CUDA sources against CUTLASS's headers, once for each GPU architecture, source, compiler and CUTLASS."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pymllm_quant_w8a8_cutlass.tiles import Tile

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-Xcompiler=-fPIC",
    "--expt-relaxed-constexpr",
    "-diag-suppress=20012",
    "-DNDEBUG",
)

COMPILER_MEMORY = 2 * 2**30
"""Bytes that one compilation may take."""


class BuildError(Exception):
    """Why CUTLASS kernels cannot be built here, and what to do about it."""


@dataclass(frozen=True)
class Variant:
    """One library: a tile for an output type (float16, or bfloat16), with a residual or without."""

    tile: Tile
    half: bool
    residual: bool

    @property
    def macros(self) -> list[str]:
        """As nvcc takes them."""
        values = {**self.tile.macros, "W8A8_HALF": int(self.half), "W8A8_RESIDUAL": int(self.residual)}
        return [f"-D{name}={value}" for name, value in values.items()]

    def __str__(self) -> str:
        dtype = "float16" if self.half else "bfloat16"
        return f"{self.tile}, {dtype}{', residual' if self.residual else ''}"


@dataclass(frozen=True)
class Toolchain:
    """nvcc: the compiler; version: what it says of itself. headers: CUTLASS's include folder."""

    nvcc: Path
    version: str
    headers: Path


def toolchain() -> Toolchain:
    """What there is to build with. Raises BuildError that says what is missing."""
    nvcc = find_nvcc()
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    if told.returncode:
        raise BuildError(f"{nvcc} does not run: {told.stderr.strip()[:200]}")
    return Toolchain(nvcc, told.stdout, find_headers())


def find_nvcc(usual: Path = Path("/usr/local/cuda")) -> Path:
    """The CUDA compiler: in $CUDA_HOME, on the PATH or in the usual folder. Raises BuildError."""
    home, found = os.environ.get("CUDA_HOME"), shutil.which("nvcc")
    candidates = [Path(folder) / "bin" / "nvcc" for folder in (home, usual) if folder]
    candidates[1 if home else 0 : 0] = [Path(found)] if found else []
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise BuildError("there is no nvcc: install the CUDA toolkit, or set CUDA_HOME to where it is")


def find_headers() -> Path:
    """CUTLASS's headers: of $CUTLASS_HOME, or those that FlashInfer or the package nvidia-cutlass bring. Raises
    BuildError."""
    home = os.environ.get("CUTLASS_HOME")
    if home:
        folders = [Path(home) / "include"]
    else:
        folders = [
            Path(root) / place / "include"
            for name, place in (("flashinfer", "data/cutlass"), ("cutlass_library", "source"))
            for package in [importlib.util.find_spec(name)]
            for root in (package.submodule_search_locations if package else None) or ()
        ]
    for folder in folders:
        if (folder / "cutlass" / "version.h").is_file():
            return folder
    where = f"none in {folders[0]}" if folders else "neither CUTLASS_HOME nor FlashInfer nor nvidia-cutlass is there"
    raise BuildError(f"there are no CUTLASS headers ({where}): install nvidia-cutlass, or set CUTLASS_HOME")


def cached(variant: Variant, capability: tuple[int, int], tools: Toolchain) -> Path:
    """Where a library is kept, under ``XDG_CACHE_HOME`` or ``~/.cache``."""
    version = (tools.headers / "cutlass" / "version.h").read_bytes()
    return _folder() / f"{_source(variant, capability)}-{_digest(tools.version.encode(), version)}.so"


def built_before(variant: Variant, capability: tuple[int, int]) -> Path | None:
    """The library that any compiler built last from these sources, for machines that have none."""
    found = _folder().glob(f"{_source(variant, capability)}-????????????.so")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pymllm" / "w8a8-cutlass"


def _source(variant: Variant, capability: tuple[int, int]) -> str:
    files = [(SOURCES / name).read_bytes() for name in ("w8a8.h", variant.tile.source)]
    return f"{_architecture(capability)}-{_digest(*files, str(variant.macros).encode(), str(FLAGS).encode())}"


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def build(variants: Sequence[Variant], capability: tuple[int, int], tools: Toolchain) -> list[str]:
    """Build what of it is not in the cache, as many at a time as there are processors -> a line for each built.
    Raises BuildError."""
    missing = [variant for variant in variants if not cached(variant, capability, tools).is_file()]
    if not missing:
        return []
    jobs = max(1, min(len(missing), os.cpu_count() or 1, _free_memory() // COMPILER_MEMORY))
    log.info(
        "building %d CUTLASS kernels for %s, %d at a time: a minute or two each, once",
        len(missing), _architecture(capability), jobs,
    )  # fmt: skip
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda variant: _compile(variant, capability, tools), missing))


def _compile(variant: Variant, capability: tuple[int, int], tools: Toolchain) -> str:
    started = time.monotonic()
    target = cached(variant, capability, tools)
    architecture = _architecture(capability)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when it is whole: another process may build the same, and none may load half of it.
    partial = target.with_suffix(f".{os.getpid()}.so")
    code = f"-gencode=arch={architecture.replace('sm', 'compute')},code={architecture}"
    command = [str(tools.nvcc), *FLAGS, code, "-I", str(tools.headers), *variant.macros]
    command += [str(SOURCES / variant.tile.source), "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        partial.unlink(missing_ok=True)
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:])
        raise BuildError(f"nvcc could not compile {variant} for {architecture}: {reason[:300]}")
    partial.replace(target)
    line = f"built CUTLASS kernel {variant} for {architecture} in {time.monotonic() - started:.0f} s"
    log.info(line)
    return line


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _architecture(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}{'a' if capability == (9, 0) else ''}"
