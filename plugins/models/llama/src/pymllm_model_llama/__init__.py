"""Llama, SmolLM2 and Qwen2 models."""
