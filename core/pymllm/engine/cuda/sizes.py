"""Which padded sizes are captured: close together, so that little is computed in vain."""

from __future__ import annotations


def decode_sizes(most: int) -> list[int]:
    """Rows of a decode step, up to ``most``."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 257, 16), *range(288, 1025, 32)]
    return sorted({min(size, most) for size in sizes})


def prefill_sizes(most: int) -> list[int]:
    """Tokens of a step with prefill chunks, up to ``most``: at most a third more than are needed, past 64."""
    sizes = [64, 96, 128, 192, 256, 384, 512, 640, 768, *range(1024, 2048, 256), *range(2048, 8193, 512)]
    return [size for size in sizes if size <= most]


def media_sizes() -> list[int]:
    """Rows of a vision tower. More of them, two pictures of 1024 x 1024 pixels, keep the device busy anyway."""
    return [256, 384, 512, 768, 1024, 1280, 1536, *range(2048, 5121, 512), 6144, 7168, 8192]


MOST_WHOLE = 2048
"""Tokens up to which steps of whole prompts are captured with their attention: larger ones keep the device busy long
enough for the host to launch attention layer by layer, and have faster kernels that cannot be captured."""
