"""Weights in 8 bits, quantized while a full-precision checkpoint loads."""
