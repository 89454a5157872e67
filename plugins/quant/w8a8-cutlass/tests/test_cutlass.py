"""CUTLASS kernels build for Orin and Hopper without a GPU, say what is missing, and on a GPU equal float64."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pymllm.errors import PluginError
from pymllm_quant_w8a8_cutlass.build import (
    BuildError,
    Toolchain,
    Variant,
    build,
    built_before,
    cached,
    find_nvcc,
    toolchain,
)
from pymllm_quant_w8a8_cutlass.library import Kernel, Library, _Problem
from pymllm_quant_w8a8_cutlass.plugin import Kernels
from pymllm_quant_w8a8_cutlass.products import describe
from pymllm_quant_w8a8_cutlass.tiles import HOPPER as HOPPER_TILES
from pymllm_quant_w8a8_cutlass.tiles import LARGE_AMPERE, TILES, Tile
from pymllm_quant_w8a8_cutlass.tilings import GPU

HOPPER = GPU(132, 227 * 1024, (9, 0))


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        return toolchain()
    except BuildError as missing:
        pytest.skip(str(missing))


COMPILED = [
    ((8, 7), Variant(TILES[8, 7][1], half=False, residual=True)),
    ((8, 7), Variant(TILES[8, 7][2], half=True, residual=False)),
    ((9, 0), Variant(TILES[9, 0][1], half=True, residual=False)),
    ((9, 0), Variant(TILES[9, 0][3], half=False, residual=True)),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("capability", "variant"), COMPILED, ids=str)
def test_kernels_build_and_load(tools: Toolchain, capability: tuple[int, int], variant: Variant) -> None:
    """Whether a kernel can serve a problem is asked on the host: that works without a GPU."""
    build([variant], capability, tools)
    assert build([variant], capability, tools) == []  # it is kept
    kernel = Kernel(cached(variant, capability, tools), processors=16)
    memory = ctypes.create_string_buffer(4096)
    start = -(-ctypes.addressof(memory) // 16) * 16

    def workspace(width: int, terms: int) -> int:
        pointers = [start] * 7
        return kernel._workspace(ctypes.byref(_Problem(*pointers, 129, width, terms)), 16)

    assert workspace(264, 48) >= 0
    assert workspace(264, 40) == -1
    assert workspace(260, 48) == -1


def test_libraries_are_kept_by_architecture_source_and_compiler(tools: Toolchain) -> None:
    small, large = (Variant(tile, half=False, residual=False) for tile in TILES[8, 7][1:])
    other = Toolchain(tools.nvcc, "another compiler", tools.headers)
    kept = {
        cached(small, (8, 7), tools),
        cached(small, (8, 0), tools),
        cached(large, (8, 7), tools),
        cached(Variant(small.tile, half=True, residual=False), (8, 7), tools),
        cached(small, (8, 7), other),
    }
    assert len(kept) == 5
    assert cached(small, (8, 7), tools) in kept


def test_what_was_built_before_is_found_without_a_compiler(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    variant, other = (Variant(tile, half=False, residual=False) for tile in TILES[8, 7][1:])
    assert built_before(variant, (8, 7)) is None
    path = cached(variant, (8, 7), tools)
    path.parent.mkdir(parents=True)
    path.touch()
    assert built_before(variant, (8, 7)) == path
    assert built_before(variant, (8, 0)) is None
    assert built_before(other, (8, 7)) is None


def test_a_missing_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="there is no nvcc: install the CUDA toolkit, or set CUDA_HOME"):
        find_nvcc(tmp_path)


@pytest.fixture
def without_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that runs, and a CUTLASS_HOME that holds nothing."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho release 13.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("CUTLASS_HOME", str(tmp_path / "cutlass"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("without_headers")
def test_triton_serves_where_cutlass_cannot_be_built(caplog: pytest.LogCaptureFixture) -> None:
    library = Library(Kernels.auto, HOPPER, torch.bfloat16)
    with caplog.at_level(logging.WARNING):
        library.load()
    assert not library.serves(1024, 1024)
    assert "there are no CUTLASS headers" in caplog.text
    assert "install nvidia-cutlass, or set CUTLASS_HOME" in caplog.text


@pytest.mark.usefixtures("without_headers")
def test_cutlass_by_name_is_an_error_where_it_cannot_be_built() -> None:
    with pytest.raises(PluginError, match=r"quant\.kernels is cutlass, but there are no CUTLASS headers"):
        Library(Kernels.cutlass, HOPPER, torch.bfloat16).load()


@pytest.mark.parametrize(
    ("gpu", "dtype", "reason"),
    [
        (None, torch.bfloat16, "this engine is on a CPU"),
        (GPU(100, 99 * 1024, (7, 5)), torch.bfloat16, r"no CUTLASS kernels for compute capability 7\.5"),
        (HOPPER, torch.float32, "bfloat16 and float16, not float32"),
    ],
)
def test_what_cutlass_does_not_serve_is_refused_by_name(gpu: GPU | None, dtype: torch.dtype, reason: str) -> None:
    with pytest.raises(PluginError, match=reason):
        Library(Kernels.cutlass, gpu, dtype).load()


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("tiles", "dtype"),
    [(HOPPER_TILES, torch.bfloat16), (HOPPER_TILES[2:3], torch.float16), (LARGE_AMPERE, torch.bfloat16)],
    ids=["wgmma", "wgmma, float16", "mma"],
)
def test_every_tile_equals_float64(tools: Toolchain, tiles: Sequence[Tile], dtype: torch.dtype) -> None:
    """Ampere's kernels run on later GPUs too."""
    gpu = describe(torch.device("cuda"))
    if tiles is not LARGE_AMPERE and gpu.capability != (9, 0):
        pytest.skip("Hopper's kernels run on Hopper only")
    half = dtype == torch.float16
    variants = [Variant(tile, half, residual) for tile in tiles for residual in (False, True)]
    build(variants, gpu.capability, tools)
    for variant in variants:
        kernel = Kernel(cached(variant, gpu.capability, tools), gpu.processors)
        for size in [(1, 8, 16), (129, 264, 272), (300, 1032, 2560), (2048, 2560, 9728)]:
            for biased in (False, True):
                ratio = worst(kernel, size, dtype, biased=biased, residual=variant.residual)
                assert ratio <= 1, (variant, size, biased)


def worst(kernel: Kernel, size: tuple[int, int, int], dtype: torch.dtype, *, biased: bool, residual: bool) -> float:
    """The largest error against float64, as a share of what one rounding to the dtype and float32 steps allow."""
    rows, width, terms = size
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-127, 128, (rows, terms), generator=generator, dtype=torch.int8).cuda()
    weight = torch.randint(-128, 128, (width, terms), generator=generator, dtype=torch.int8).cuda()
    x_scale = 10.0 ** torch.randint(-8, 3, (rows,), generator=generator).float().cuda()
    weight_scale = torch.rand(width, generator=generator).cuda() / 127 / terms**0.5
    bias = torch.randn(width, generator=generator).to("cuda", dtype) if biased else None
    h = torch.randn(rows, width, generator=generator).to("cuda", dtype) if residual else None
    out = torch.full((rows, width), float("nan"), dtype=dtype, device="cuda") if h is None else h.clone()
    kernel(x, x_scale, weight, weight_scale, out, bias=bias, residual=None if h is None else out)
    exact = x.double() @ weight.double().T * x_scale.double()[:, None] * weight_scale.double()
    terms_size = exact.abs()
    for part in (bias, h):
        if part is not None:
            exact, terms_size = exact + part.double(), terms_size + part.double().abs()
    limits = torch.finfo(dtype)
    bound = limits.eps / 2 * exact.abs() + 1e-6 * terms_size + limits.tiny
    ratio = (out.double() - exact).abs() / bound
    ratio[exact.abs() > limits.max] = 0
    return float(ratio.max())
