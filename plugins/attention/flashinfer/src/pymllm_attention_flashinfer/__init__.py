"""Paged attention through FlashInfer's CUDA kernels."""
