"""Qwen3 dense models."""
