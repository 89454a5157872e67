"""Scenes as pixels."""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from pymllm_model_qwen3_vl.demo.scenes import Scene, Shape

SHARPNESS = 4
"""Shapes are drawn so many times as large, and averaged, for smooth edges."""

RGB = {
    "red": (215, 25, 30),
    "orange": (255, 135, 0),
    "yellow": (250, 235, 30),
    "green": (25, 150, 45),
    "cyan": (20, 215, 225),
    "blue": (30, 60, 220),
    "purple": (125, 25, 165),
    "pink": (255, 130, 200),
    "black": (12, 12, 12),
    "white": (250, 250, 250),
}


def _ring(radii: tuple[float, ...], corners: int) -> list[tuple[float, float]]:
    """Corners around the middle, the first one up, at these radii in turn."""
    return [
        (radii[i % len(radii)] * sin(2 * pi * i / corners), -radii[i % len(radii)] * cos(2 * pi * i / corners))
        for i in range(corners)
    ]


def _heart() -> list[tuple[float, float]]:
    angles = [2 * pi * i / 32 for i in range(32)]
    return [(sin(a) ** 3, -(13 * cos(a) - 5 * cos(2 * a) - 2 * cos(3 * a) - cos(4 * a)) / 16.5 - 0.12) for a in angles]


OUTLINES = {
    "circle": _ring((1.0,), 40),
    "square": [(-0.72, -0.72), (0.72, -0.72), (0.72, 0.72), (-0.72, 0.72)],
    "triangle": _ring((1.0,), 3),
    "star": _ring((1.0, 0.42), 10),
    "cross": [(a, b) for a, b in (
        (-0.3, -0.95), (0.3, -0.95), (0.3, -0.3), (0.95, -0.3), (0.95, 0.3), (0.3, 0.3),
        (0.3, 0.95), (-0.3, 0.95), (-0.3, 0.3), (-0.95, 0.3), (-0.95, -0.3), (-0.3, -0.3),
    )],
    "heart": _heart(),
}  # fmt: skip
"""Kind -> corners (x to the right, y down) in a circle of radius 1."""


def draw(scene: Scene, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """The picture, [height, width, 3]. rng: what the scene leaves open (grain, exact colours)."""
    image = _background(scene, rng)
    for shape in scene.shapes:
        _add(image, shape, rng)
    return np.array(image)


def _background(scene: Scene, rng: np.random.Generator) -> Image.Image:
    width, height = scene.width, scene.height
    if scene.background == "plain":
        return Image.new("RGB", (width, height), scene.tint)
    change: npt.NDArray[np.float32 | np.int16]
    if scene.background == "noise":
        change = rng.integers(-10, 11, (height, width)).astype(np.int16)
    elif rng.random() < 0.5:
        change = _wave(scene.background, width, rng)[None]
    else:
        change = _wave(scene.background, height, rng)[:, None]
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    for channel, level in enumerate(scene.tint):  # broadcasting over the last axis instead takes three times as long
        pixels[..., channel] = (change + level).astype(np.uint8)
    return Image.fromarray(pixels)


def _wave(background: str, length: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Change of brightness along a side: from end to end, or to and fro."""
    if background == "gradient":
        strength = 50 * rng.random() - 25
        return np.linspace(-strength, strength, length, dtype=np.float32)
    period = 6 + 18 * rng.random()
    return np.where(np.arange(length) % period < period / 2, 8, -8).astype(np.float32)


def _add(image: Image.Image, shape: Shape, rng: np.random.Generator) -> None:
    left, top = int(shape.x - shape.diameter / 2) - 1, int(shape.y - shape.diameter / 2) - 1
    side = int(shape.diameter) + 4
    radius, turned, upright = SHARPNESS * shape.diameter / 2, sin(shape.turn), cos(shape.turn)
    across, down = SHARPNESS * (shape.x - left), SHARPNESS * (shape.y - top)
    corners = [
        (across + radius * (upright * x - turned * y), down + radius * (turned * x + upright * y))
        for x, y in OUTLINES[shape.kind]
    ]
    mask = Image.new("L", (SHARPNESS * side, SHARPNESS * side))
    ImageDraw.Draw(mask).polygon(corners, fill=255)
    red, green, blue = (min(max(int(value + 20 * rng.random() - 10), 0), 255) for value in RGB[shape.colour])
    image.paste((red, green, blue), (left, top), mask.reduce(SHARPNESS))
