"""Does FlashInfer work on a device? Asked by ``attention: auto`` and ``pymllm doctor``."""

from __future__ import annotations

import torch

from pymllm.errors import PluginError
from pymllm.interfaces import AttentionBatch, AttentionContext, KVGroup
from pymllm_attention_flashinfer.library import missing

HEADS, SIZE, PAGE, CONTEXT = 2, 128, 4, 11


def probe(device: torch.device) -> str | None:
    """Prefill a prompt with the kernel that serves most models and compare it with float64 on the CPU.

    Returns None if it works, otherwise one line that says why not. FlashInfer builds the kernel on first use,
    which takes some minutes once.
    """
    if device.type != "cuda":
        return f"runs on CUDA, not on {device.type}"
    reason = missing()
    if reason is not None:
        return reason
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or more"
    try:
        difference = _difference(device)
    except (RuntimeError, AttributeError, TypeError, ImportError, PluginError) as error:
        lines = str(error).strip().splitlines()
        return f"does not run on {device}: {lines[0] if lines else type(error).__name__}"
    return None if difference < 0.02 else f"computes wrong results on {device}: off by {difference:.2g}"


def _difference(device: torch.device) -> float:
    """Largest error of the last token of a prompt over scattered pages."""
    from pymllm_attention_flashinfer.backend import FlashInferAttention
    from pymllm_attention_flashinfer.plugin import FlashInferOptions

    group = KVGroup("probe", 1, HEADS, SIZE)
    context = AttentionContext(device, torch.bfloat16, PAGE, {group.name: group})
    backend = FlashInferAttention(FlashInferOptions(), context)
    backend.allocate(group, 5)
    layer = _Layer(group.name)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, HEADS, SIZE, generator=generator).bfloat16() for n in (CONTEXT, CONTEXT, CONTEXT))
    pages = [3, 1, 4]
    slots = [pages[i // PAGE] * PAGE + i % PAGE for i in range(CONTEXT)]
    backend.plan(_batch([CONTEXT], pages, slots, device))
    backend.write(layer, k.to(device), v.to(device))
    on_device = q.to(device)
    out = torch.empty_like(on_device)
    backend.attend(layer, on_device, out)
    found = out[-1:].cpu().double()
    wide = [x.double().transpose(0, 1) for x in (q[-1:], k, v)]
    expected = (wide[0] @ wide[1].transpose(1, 2) * layer.scale).softmax(-1) @ wide[2]
    return float((found - expected.transpose(0, 1)).abs().max())


class _Layer:
    """An ``AttentionLayer``."""

    index, heads, kv_heads, head_dim, scale = 0, HEADS, HEADS, SIZE, SIZE**-0.5
    q_norm = k_norm = rope = None

    def __init__(self, group: str) -> None:
        self.group = group


def _batch(query_lens: list[int], pages: list[int], slots: list[int], device: torch.device) -> AttentionBatch:
    return AttentionBatch(
        query_lens=query_lens,
        context_lens=[CONTEXT],
        query_starts=torch.tensor([0, query_lens[0]], dtype=torch.int32, device=device),
        context_lens_d=torch.tensor([CONTEXT], dtype=torch.int32, device=device),
        page_table=torch.tensor([pages], dtype=torch.int32, device=device),
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
    )
