"""The product of a linear layer together with what stands before and after it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pymllm.layers.kernels.rows import rms_norm, silu_and_mul
from pymllm.layers.kernels.tiling import Tiling


def product(
    tiling: Tiling,
    x: Tensor,
    weight: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
    counters: Tensor | None = None,
) -> Tensor:
    """norm(x) W^T + b, then silu(gate) * up, then + residual; the parts that are not asked for are left out.

    x: [T, K]; weight: [N, K], or [2 N, K], gate above up, where gated; bias: as many as rows of the weight; norm_weight:
    [K] of an RMS norm with ``eps``; residual: [T, N], is overwritten with the result, which is returned -> [T, N].
    counters: int32 zeros, one for each 16 outputs, that no product that may run at the same time has; needed where a
    tiling splits. Sums are float32. The kernels take bfloat16 and float16 on a GPU, the library anything.
    """
    if tiling.kernel == "library":
        return _by_library(x, weight, norm_weight, eps, bias, gated, residual)
    from pymllm.layers.kernels.product_triton import launch

    if norm_weight is not None and tiling.kernel == "dot" and x.dtype == torch.float16:
        # Rounded before it is divided by its norm, x times the norm's weight may be too large for float16.
        x, norm_weight = rms_norm(x, norm_weight, eps), None
    x = x.contiguous()
    width = len(weight) // 2 if gated else len(weight)
    out = x.new_empty(len(x), width) if residual is None else residual
    launch(
        tiling,
        x,
        weight,
        out,
        norm_weight=norm_weight,
        eps=eps,
        bias=bias,
        residual=residual,
        gated=gated,
        counters=counters,
    )
    return out


def _by_library(
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    bias: Tensor | None,
    gated: bool,
    residual: Tensor | None,
) -> Tensor:
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    if residual is not None and not gated:
        residual.addmm_(x, weight.t())
        return residual if bias is None else residual.add_(bias)
    y = F.linear(x, weight, bias)
    if gated:
        y = silu_and_mul(y)
    return y if residual is None else residual.add_(y)
