"""What the plugin offers; nothing heavy is imported here."""

from __future__ import annotations

from pymllm.plugin import AttentionSpec, hookimpl


@hookimpl
def pymllm_attention() -> AttentionSpec:
    return AttentionSpec(
        priority=10,
        probe="pymllm_attention_triton.probe:probe",
        factory="pymllm_attention_triton.backend:TritonAttention",
        summary="paged attention in Triton kernels, CUDA",
    )
