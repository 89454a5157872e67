"""What the plugin offers; nothing heavy is imported here."""

from __future__ import annotations

from pymllm.plugin import ModelSpec, hookimpl


@hookimpl
def pymllm_model() -> ModelSpec:
    return ModelSpec(
        architectures=("Qwen3ForCausalLM",),
        factory="pymllm_model_qwen3.model:Qwen3Model",
        compression="pymllm_model_qwen3.compression:COMPRESSION",
        summary="Qwen3, dense",
    )
