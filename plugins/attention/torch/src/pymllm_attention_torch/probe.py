"""Does the backend work on a device? Asked by ``attention: auto`` and ``pymllm doctor``."""

from __future__ import annotations

import torch

from pymllm_attention_torch.dense import dense_attention


def probe(device: torch.device) -> str | None:
    """Run a small attention on the device in float32 and compare it with float64 on the CPU.

    Returns None if it works, otherwise one line that says why not.
    """
    if device.type not in ("cpu", "cuda"):
        return f"runs on CPU and CUDA, not on {device.type}"
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, rows, 16, generator=generator, dtype=torch.float64) for rows in (3, 8, 8))
    expected = (q @ k.transpose(1, 2) / 4).softmax(-1) @ v
    try:
        attention = dense_attention(device, torch.float32)
        found = attention(q.to(device).float(), k.to(device).float(), v.to(device).float(), None, 0.25).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()
        return f"does not run on {device}: {reason[0] if reason else type(error).__name__}"
    difference = float((found - expected).abs().max())
    if not difference < 1e-2:
        return f"computes wrong results on {device}: off by {difference:.2g}"
    return None
