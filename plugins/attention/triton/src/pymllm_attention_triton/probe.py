"""Does the backend work on a device? Asked by ``attention: auto`` and ``pymllm doctor``."""

from __future__ import annotations

import torch


def probe(device: torch.device) -> str | None:
    """Run a small packed attention on the device and compare it with float64 on the CPU.

    Returns None if it works, otherwise one line that says why not.
    """
    if device.type != "cuda":
        return f"runs on CUDA, not on {device.type}"
    try:
        if torch.cuda.get_device_capability(device) < (8, 0):
            return f"needs compute capability 8.0, {device} has less"
        difference = probe_error(device, torch.float16)
    except Exception as error:  # A missing compiler or driver raises anything at all.
        reason = str(error).strip().splitlines()
        return f"does not run on {device}: {reason[0] if reason else type(error).__name__}"
    if not difference < 1e-2:
        return f"computes wrong results on {device}: off by {difference:.2g}"
    return None


def probe_error(device: torch.device, dtype: torch.dtype) -> float:
    """Largest error of a small packed attention. Raises whatever Triton raises."""
    from pymllm_attention_triton.configs import device_of, varlen_config
    from pymllm_attention_triton.launch import packed

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(9, 2, 32, generator=generator, dtype=torch.float64) for _ in range(3))
    starts = [0, 4, 9]
    parts = [(q[a:b].transpose(0, 1), k[a:b].transpose(0, 1), v[a:b].transpose(0, 1)) for a, b in ((0, 4), (4, 9))]
    expected = torch.cat([((x @ y.transpose(1, 2) / 4).softmax(-1) @ z).transpose(0, 1) for x, y, z in parts])
    on_device = torch.tensor(starts, dtype=torch.int32, device=device)
    q, k, v = (x.to(device, dtype) for x in (q, k, v))
    found = torch.empty_like(q)
    config = varlen_config(device_of(device), q.shape[2], q.element_size())
    packed(found, q, k, v, starts, on_device, 0.25, config).run()
    return float((found.cpu().double() - expected).abs().max())
