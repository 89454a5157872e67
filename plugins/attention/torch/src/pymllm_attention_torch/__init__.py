"""Paged attention in plain PyTorch, on CPU and CUDA."""
