"""Triton kernels of the sampler. :mod:`.sample` is their host side and imports without Triton."""
