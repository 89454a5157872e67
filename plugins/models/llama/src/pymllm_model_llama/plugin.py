"""What the plugin offers; nothing heavy is imported here."""

from __future__ import annotations

from pymllm.plugin import ModelSpec, hookimpl


@hookimpl
def pymllm_model() -> ModelSpec:
    return ModelSpec(
        architectures=("LlamaForCausalLM", "Qwen2ForCausalLM"),
        factory="pymllm_model_llama.model:LlamaModel",
        compression="pymllm_model_llama.compression:COMPRESSION",
        summary="Llama, SmolLM2 and Qwen2",
    )
