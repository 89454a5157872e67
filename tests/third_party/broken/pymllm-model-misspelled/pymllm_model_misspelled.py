"""Misspells its hook."""

from __future__ import annotations

from pymllm.plugin import ModelSpec, hookimpl


@hookimpl
def pymllm_modle() -> ModelSpec:
    return ModelSpec(architectures=("MisspelledForCausalLM",), factory="pymllm_model_misspelled:Model")
