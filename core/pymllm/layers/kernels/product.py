"""The product of a linear layer together with what stands before and after it."""

from __future__ import annotations

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

    x: [T, K]; weight: [N, K], or [2 N, K], gate above up, where gated, contiguous, K a multiple of 8; bias: as many as
    rows of the weight; norm_weight: [K] of an RMS norm with ``eps``; residual: [T, N], contiguous, is overwritten with
    the result, which is returned -> [T, N].
    tiling: one for that number of rows ("gemv" and "resident" take one, "dot" up to 128). counters: int32 zeros, one
    for each 16 rows of the weight, that no product that may run at the same time has; needed where a tiling splits.

    Sums are float32. The kernels take bfloat16 and float16 on a GPU, the library anything.
    """
    if tiling.kernel != "library":
        x = x.contiguous()
        width = len(weight) // 2 if gated else len(weight)
        out = x.new_empty(len(x), width) if residual is None else residual
        if tiling.kernel == "dot":
            from pymllm.layers.kernels.dot_triton import launch_dot

            if norm_weight is not None:
                x = rms_norm(x, norm_weight, eps)
            launch_dot(tiling, x, weight, out, bias=bias, residual=residual, gated=gated, counters=counters)
        else:
            from pymllm.layers.kernels.gemv_triton import launch_gemv

            launch_gemv(
                tiling,
                x,
                weight,
                out,
                norm_weight=norm_weight,
                eps=eps,
                bias=bias,
                residual=residual,
                gated=gated,
            )
        return out
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    if residual is not None and not gated:
        residual.addmm_(x, weight.t())
        return residual if bias is None else residual.add_(bias)
    y = F.linear(x, weight, bias)
    if gated:
        y = silu_and_mul(y)
    return y if residual is None else residual.add_(y)
