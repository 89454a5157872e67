"""The built CUTLASS kernels, called through their C interface."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import torch
from torch import Tensor

from pymllm.errors import PluginError
from pymllm_quant_w8a8_cutlass.build import BuildError, Variant, build, built_before, cached, toolchain
from pymllm_quant_w8a8_cutlass.plugin import Kernels
from pymllm_quant_w8a8_cutlass.tiles import TILES
from pymllm_quant_w8a8_cutlass.tilings import GPU

log = logging.getLogger(__name__)

ALIGNMENT = 8
"""Of the output's width: rows are stored in steps of 16 bytes."""


class _Problem(ctypes.Structure):
    """The struct Problem of csrc/w8a8.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "x_scale", "w", "w_scale", "bias", "residual", "out")),
        *((name, ctypes.c_int) for name in ("m", "n", "k")),
    )


class Kernel:
    """One library. Raises OSError if the file cannot be loaded."""

    def __init__(self, path: Path, processors: int) -> None:
        library = ctypes.CDLL(str(path))
        self._product, self._workspace, self._status = (
            library.w8a8_product, library.w8a8_workspace, library.w8a8_status,
        )  # fmt: skip
        self._product.argtypes = (ctypes.POINTER(_Problem), ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        self._workspace.argtypes = (ctypes.POINTER(_Problem), ctypes.c_int)
        self._workspace.restype = ctypes.c_int64
        self._status.restype = ctypes.c_char_p
        self._processors = processors
        self._sizes: dict[tuple[int, int, int], int] = {}

    def __call__(
        self,
        x: Tensor,
        x_scale: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        out: Tensor,
        *,
        bias: Tensor | None,
        residual: Tensor | None,
    ) -> None:
        """x: int8 [T, K], x_scale: [T], weight: int8 [N, K], weight_scale: [N], out, residual: [T, N]; contiguous.
        Raises RuntimeError if the kernel cannot run."""
        rows, terms = x.shape
        pointers = [
            None if t is None else t.data_ptr() for t in (x, x_scale, weight, weight_scale, bias, residual, out)
        ]
        problem = _Problem(*pointers, rows, len(weight), terms)
        key = (rows, len(weight), terms)
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = self._workspace(ctypes.byref(problem), self._processors)
        if size < 0:
            raise RuntimeError(f"this CUTLASS kernel cannot serve a product of {rows} x {len(weight)} x {terms}")
        workspace = torch.empty(size, dtype=torch.uint8, device=x.device) if size else None
        status = self._product(
            ctypes.byref(problem),
            None if workspace is None else workspace.data_ptr(),
            self._processors,
            torch.cuda.current_stream(x.device).cuda_stream,
        )
        if status:
            raise RuntimeError(f"a CUTLASS kernel failed: {self._status(status).decode()}")


def probe(kernel: Kernel, dtype: torch.dtype, *, residual: bool) -> None:
    """Run a kernel once on the current GPU: what loads may still not run, with an old driver for example.
    Raises BuildError."""
    integers = torch.ones(8, 16, dtype=torch.int8, device="cuda")
    scales = torch.ones(8, device="cuda")
    out = torch.ones(1, 8, dtype=dtype, device="cuda")
    try:
        kernel(integers[:1], scales, integers, scales, out, bias=None, residual=out if residual else None)
        found = out.tolist()
    except RuntimeError as error:
        raise BuildError(f"its kernels do not run here: {error}") from error
    if found != [[17.0 if residual else 16.0] * 8]:
        raise BuildError(f"its kernels compute a wrong product here: {found}")


class Library:
    """The kernels for one GPU and dtype; none until :meth:`load`, and none where they cannot be built.

    gpu: None on a CPU. built: a line for each kernel that :meth:`load` built.
    """

    def __init__(self, kernels: Kernels, gpu: GPU | None, dtype: torch.dtype) -> None:
        self._wanted, self._gpu, self._dtype = kernels, gpu, dtype
        self._kernels: dict[tuple[int, bool], Kernel] = {}
        self.built: list[str] = []

    def load(self) -> None:
        """Build what is not in the cache, and load it. Does nothing where no kernel is wanted, or any was loaded.

        Raises PluginError if CUTLASS was asked for by name and cannot be had; else that is logged, and Triton serves.
        """
        if self._wanted is Kernels.triton or self._kernels:
            return
        if self._gpu is None:
            if self._wanted is Kernels.cutlass:
                raise PluginError("quant.kernels is cutlass, but this engine is on a CPU: leave it out")
            return
        try:
            self._load(self._gpu)
        except (BuildError, OSError) as error:
            if self._wanted is Kernels.cutlass:
                raise PluginError(f"quant.kernels is cutlass, but {error}") from error
            log.warning("Triton multiplies many rows too, not CUTLASS: %s", error)

    def _load(self, gpu: GPU) -> None:
        if gpu.capability not in TILES:
            major, minor = gpu.capability
            raise BuildError(f"there are no CUTLASS kernels for compute capability {major}.{minor}")
        if self._dtype not in (torch.bfloat16, torch.float16):
            name = str(self._dtype).removeprefix("torch.")
            raise BuildError(f"CUTLASS kernels give bfloat16 and float16, not {name}")
        half = self._dtype == torch.float16
        shapes = TILES[gpu.capability]
        keys = [(number, residual) for number in range(len(shapes)) for residual in (False, True)]
        variants = [Variant(shapes[number], half, residual) for number, residual in keys]
        paths = self._paths(variants, gpu.capability)
        kernels = {key: Kernel(path, gpu.processors) for key, path in zip(keys, paths)}
        for (_, residual), kernel in kernels.items():
            probe(kernel, self._dtype, residual=residual)
        self._kernels = kernels

    def _paths(self, variants: list[Variant], capability: tuple[int, int]) -> list[Path]:
        try:
            tools = toolchain()
        except BuildError:
            paths = [path for variant in variants if (path := built_before(variant, capability)) is not None]
            if len(paths) < len(variants):
                raise
            return paths
        self.built += build(variants, capability, tools)
        return [cached(variant, capability, tools) for variant in variants]

    def serves(self, width: int, terms: int) -> bool:
        """Whether products of [T, terms] with a weight [width, terms] can be CUTLASS's."""
        return bool(self._kernels) and width % ALIGNMENT == 0 and terms % 16 == 0

    def kernel(self, tile: int, *, residual: bool) -> Kernel:
        """Of a tile that was loaded."""
        return self._kernels[tile, residual]
