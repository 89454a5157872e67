"""Triton kernels. Importing this package imports no Triton."""
