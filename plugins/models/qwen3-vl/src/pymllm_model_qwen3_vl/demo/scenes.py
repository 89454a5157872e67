"""What is in a picture, before it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from typing import TypeVar

import numpy as np

from pymllm_model_qwen3_vl.demo.words import COLOURS, KINDS

T = TypeVar("T")

DIAMETERS = {"small": (15.0, 19.0), "large": (34.0, 42.0)}
"""Pixels. A processor that rounds sides to multiples of 32 stretches by 0.8 to 1.2, which leaves them apart."""

GAP = 3.0
"""Pixels between shapes, and to the edge."""

ROOM = 2600
"""Pixels of the picture for each shape."""

BACKGROUNDS = ("plain", "gradient", "stripes", "noise")


@dataclass(frozen=True)
class Variety:
    """What scenes may hold. sides: the shortest and longest side in pixels. aspect: the longest to the shortest."""

    kinds: tuple[str, ...] = tuple(KINDS)
    colours: tuple[str, ...] = tuple(COLOURS)
    most_shapes: int = 6
    sides: tuple[int, int] = (64, 224)
    aspect: float = 2.5


@dataclass(frozen=True)
class Shape:
    """One shape. x, y: its middle; diameter: of the circle around it; pixels. turn: radians."""

    kind: str
    colour: str
    size: str
    x: float
    y: float
    diameter: float
    turn: float


@dataclass(frozen=True)
class Scene:
    """width, height: pixels. tint: of the background, RGB."""

    width: int
    height: int
    background: str
    tint: tuple[int, int, int]
    shapes: tuple[Shape, ...]


def pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """One of them, all alike likely."""
    return choices[int(rng.random() * len(choices))]


def make_scene(rng: np.random.Generator, variety: Variety) -> Scene:
    """A random scene of 1 to ``variety.most_shapes`` shapes that do not touch.

    Every second scene takes its shapes from few kinds and colours, so that there is something to count.
    """
    count = 1 + int(rng.random() * variety.most_shapes)
    width, height = _sides(rng, variety, ROOM * count)
    kinds, colours = variety.kinds, variety.colours
    if rng.random() < 0.5:
        kinds, colours = _few(rng, kinds), _few(rng, colours)
    shapes: list[Shape] = []
    for _ in range(count):
        shape = _placed(rng, width, height, shapes, pick(rng, kinds), pick(rng, colours))
        if shape is not None:
            shapes.append(shape)
    level = 70 + 115 * rng.random()
    red, green, blue = (int(level + 24 * rng.random() - 12) for _ in range(3))
    return Scene(width, height, pick(rng, BACKGROUNDS), (red, green, blue), tuple(shapes))


def mirrored(scene: Scene) -> Scene:
    """Left and right exchanged. Every kind of shape is its own mirror image."""
    shapes = tuple(replace(shape, x=scene.width - shape.x, turn=-shape.turn) for shape in scene.shapes)
    return replace(scene, shapes=shapes)


def _few(rng: np.random.Generator, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(pick(rng, names) for _ in range(1 + int(rng.random() * 2)))


def _sides(rng: np.random.Generator, variety: Variety, room: int) -> tuple[int, int]:
    """Width and height with so many pixels at least (or the largest square)."""
    least, most = variety.sides
    room = min(room, most * most)
    while True:
        aspect = exp(log(variety.aspect) * (2 * rng.random() - 1))
        longer = least + (most - least) * rng.random()
        width = round(min(longer, longer * aspect))
        height = round(min(longer, longer / aspect))
        if min(width, height) >= least and width * height >= 0.9 * room:
            return width, height


def _placed(
    rng: np.random.Generator, width: int, height: int, others: Sequence[Shape], kind: str, colour: str
) -> Shape | None:
    """A shape in a ninth of the picture that has room for it; None if none was found."""
    size = "small" if rng.random() < 0.5 else "large"
    low, high = DIAMETERS[size]
    diameter = low + (high - low) * rng.random()
    margin = diameter / 2 + GAP
    for _ in range(24):
        x = width * (int(rng.random() * 3) + 0.3 + 0.4 * rng.random()) / 3
        y = height * (int(rng.random() * 3) + 0.3 + 0.4 * rng.random()) / 3
        x = min(max(x, margin), width - margin)
        y = min(max(y, margin), height - margin)
        if all(hypot(x - other.x, y - other.y) > (diameter + other.diameter) / 2 + GAP for other in others):
            return Shape(kind, colour, size, x, y, diameter, (2 * rng.random() - 1) * 0.2)
    return None
