"""Tensors over the memory of CUDA graphs that do not own it."""

from __future__ import annotations

import torch
from torch import Tensor


class _Memory:
    """Describes a tensor's memory without owning it (the CUDA array interface, version 3)."""

    def __init__(self, tensor: Tensor) -> None:
        kind = {2: "<i2", 4: "<i4"}[tensor.element_size()]
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape), "typestr": kind, "data": (tensor.data_ptr(), False), "version": 3,
        }  # fmt: skip


def alias(tensor: Tensor) -> Tensor:
    """A tensor over the same memory that does not keep it.

    For what was allocated while a graph was captured: the graphs' pool keeps the memory as long as the graphs
    live, but may give it to what is captured later. What is replayed in between must have been read by then.
    Holding on to it instead, in every layer of every size, would cost gigabytes.
    """
    return torch.as_tensor(_Memory(tensor), device=tensor.device).view(tensor.dtype)
