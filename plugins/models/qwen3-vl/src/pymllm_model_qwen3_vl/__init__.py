"""Qwen3-VL dense models."""
