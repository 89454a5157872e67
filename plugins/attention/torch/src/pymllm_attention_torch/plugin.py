"""What the plugin offers; nothing heavy is imported here."""

from __future__ import annotations

from pymllm.plugin import AttentionSpec, hookimpl


@hookimpl
def pymllm_attention() -> AttentionSpec:
    return AttentionSpec(
        priority=0,
        probe="pymllm_attention_torch.backend:probe",
        factory="pymllm_attention_torch.backend:TorchAttention",
        summary="paged attention in plain PyTorch, CPU and CUDA",
    )
