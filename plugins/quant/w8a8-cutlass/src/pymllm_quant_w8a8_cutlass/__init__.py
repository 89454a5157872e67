"""Weights and activations in 8-bit integers."""
