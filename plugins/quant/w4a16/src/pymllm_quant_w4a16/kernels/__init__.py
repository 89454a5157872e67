"""Triton kernels for 4-bit weights. The layout is that of :mod:`pymllm_quant_w4a16.layout`. Importing this imports no
Triton."""
