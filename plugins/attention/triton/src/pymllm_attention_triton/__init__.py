"""Paged attention in Triton kernels, on NVIDIA GPUs."""
