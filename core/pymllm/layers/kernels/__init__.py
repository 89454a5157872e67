"""Fused kernels of the layer library: Triton on a GPU, the same in plain PyTorch elsewhere.

Importing this package imports no Triton; the first call on a GPU does.
"""

from pymllm.layers.kernels.product import product
from pymllm.layers.kernels.qkv import produce, write_qkv
from pymllm.layers.kernels.rows import layer_norm, rms_norm, silu_and_mul
from pymllm.layers.kernels.tiling import LIBRARY, Tiling

__all__ = ["LIBRARY", "Tiling", "layer_norm", "produce", "product", "rms_norm", "silu_and_mul", "write_qkv"]
