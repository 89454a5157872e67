"""Where the sampler's kernels can run."""

from __future__ import annotations

import importlib.util
import os

import torch


def has_kernels(device: torch.device) -> bool:
    """Whether the Triton passes run on this device (on a CPU: under Triton's interpreter)."""
    if importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
