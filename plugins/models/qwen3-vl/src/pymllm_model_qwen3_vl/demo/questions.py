"""Questions about a scene, each with one right answer of one to three words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from typing import Any

import numpy as np

from pymllm_model_qwen3_vl.demo.phrases import QUESTIONS
from pymllm_model_qwen3_vl.demo.scenes import Scene, Shape, pick
from pymllm_model_qwen3_vl.demo.words import COLOURS, KINDS, PLACES, PLURALS, SIZES, Language

Traits = tuple[str, ...]
"""Some of "size", "colour" and "kind"."""


@dataclass(frozen=True)
class Asked:
    """A question. kind: one of KINDS_OF_QUESTIONS."""

    kind: str
    language: Language
    text: str
    answer: str


def ask(rng: np.random.Generator, scene: Scene, kind: str, language: Language) -> Asked | None:
    """A question of that kind; None where the scene has no clear answer to one."""
    found = _MAKERS[kind](rng, scene.shapes, scene, language)
    if found is None:
        return None
    what, names, answer = found
    return Asked(kind, language, pick(rng, QUESTIONS[what][language]).format(**names), answer)


Found = tuple[str, dict[str, str], str]
"""What is asked, the names in it, the answer."""


def name_of(shape: Shape, traits: Traits, language: Language, *, plural: bool = False) -> str:
    """A shape by some of its traits: "large star", "red shape"."""
    size = SIZES[shape.size].say(language) if "size" in traits else ""
    colour = COLOURS[shape.colour].say(language) if "colour" in traits else ""
    if language == "zh":
        return size + colour + (KINDS[shape.kind].zh if "kind" in traits else "图形")
    noun = shape.kind if "kind" in traits else "shape"
    noun = PLURALS.get(noun, "shapes") if plural else noun
    return " ".join(word for word in (size, colour, noun) if word)


_KEYS: dict[Traits, Callable[[Shape], Any]] = {
    (): lambda shape: None,
    **{traits: attrgetter(*traits) for count in (1, 2) for traits in combinations(("size", "colour", "kind"), count)},
}
"""Traits -> what is equal where shapes share them."""


def _singles(shapes: Sequence[Shape], traits: Traits) -> list[Shape]:
    """Shapes that share these traits with no other."""
    keys = list(map(_KEYS[traits], shapes))
    return [shape for shape, key in zip(shapes, keys) if keys.count(key) == 1]


def _named(
    rng: np.random.Generator,
    shapes: Sequence[Shape],
    choices: Sequence[Traits],
    suits: Callable[[Shape], bool] = lambda shape: True,
) -> tuple[Shape, Traits] | None:
    """A shape that suits, and traits that no other shape shares all of."""
    found = [(shape, traits) for traits in choices for shape in _singles(shapes, traits) if suits(shape)]
    return pick(rng, found) if found else None


def _colour(rng: np.random.Generator, shapes: Sequence[Shape], scene: Scene, language: Language) -> Found | None:
    named = _named(rng, shapes, (("kind",), ("size", "kind")))
    if named is None:
        return None
    shape, traits = named
    return "colour", {"it": name_of(shape, traits, language)}, COLOURS[shape.colour].say(language)


def _shape(rng: np.random.Generator, shapes: Sequence[Shape], scene: Scene, language: Language) -> Found | None:
    named = _named(rng, shapes, (("colour",), ("size", "colour")))
    if named is None:
        return None
    shape, traits = named
    it = name_of(shape, traits, language).replace(" shape", " one").replace("图形", "的图形")
    return "shape", {"it": it}, KINDS[shape.kind].say(language)


def _count(rng: np.random.Generator, shapes: Sequence[Shape], scene: Scene, language: Language) -> Found | None:
    if not shapes:
        return None
    shape = pick(rng, shapes)
    traits = pick(rng, ((), ("kind",), ("colour",)))
    key = _KEYS[traits]
    number = list(map(key, shapes)).count(key(shape))
    return "count", {"it": name_of(shape, traits, language, plural=True)}, str(number)


def _position(rng: np.random.Generator, shapes: Sequence[Shape], scene: Scene, language: Language) -> Found | None:
    def clear(shape: Shape) -> bool:
        thirds = 3 * shape.x / scene.width, 3 * shape.y / scene.height
        return all(abs(third - border) > 0.2 for third in thirds for border in (1, 2))

    named = _named(rng, shapes, (("kind",), ("colour",), ("colour", "kind")), clear)
    if named is None:
        return None
    shape, traits = named
    place = PLACES[int(3 * shape.y / scene.height)][int(3 * shape.x / scene.width)]
    return "position", {"it": name_of(shape, traits, language)}, place.say(language)


def _size(rng: np.random.Generator, shapes: Sequence[Shape], scene: Scene, language: Language) -> Found | None:
    named = _named(rng, shapes, (("kind",), ("colour",), ("colour", "kind")))
    if named is None:
        return None
    shape, traits = named
    return "size", {"it": name_of(shape, traits, language)}, SIZES[shape.size].say(language)


def _comparison(rng: np.random.Generator, shapes: Sequence[Shape], scene: Scene, language: Language) -> Found | None:
    traits = ("colour", "kind")
    found = [(what, pair) for pair in combinations(_singles(shapes, traits), 2) for what in _differences(*pair, scene)]
    if not found:
        return None
    what, pair = pick(rng, found)
    answer = max(pair, key=_ORDERS[what])
    it, other = pair if rng.random() < 0.5 else pair[::-1]
    names = {"it": name_of(it, traits, language), "other": name_of(other, traits, language)}
    return what, names, name_of(answer, traits, language)


_ORDERS: dict[str, Callable[[Shape], float]] = {
    "larger": lambda shape: shape.diameter,
    "smaller": lambda shape: -shape.diameter,
    "left": lambda shape: -shape.x,
    "right": lambda shape: shape.x,
    "higher": lambda shape: -shape.y,
    "lower": lambda shape: shape.y,
}


def _differences(a: Shape, b: Shape, scene: Scene) -> Iterator[str]:
    """In what two shapes differ clearly."""
    if a.size != b.size:
        yield from ("larger", "smaller")
    if abs(a.x - b.x) > max(0.2 * scene.width, 20):
        yield from ("left", "right")
    if abs(a.y - b.y) > max(0.2 * scene.height, 20):
        yield from ("higher", "lower")


_MAKERS: dict[str, Callable[[np.random.Generator, Sequence[Shape], Scene, Language], Found | None]] = {
    "colour": _colour,
    "shape": _shape,
    "count": _count,
    "position": _position,
    "size": _size,
    "comparison": _comparison,
}

KINDS_OF_QUESTIONS = tuple(_MAKERS)
