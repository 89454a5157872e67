"""The demo's pictures and questions: the same for a seed, right, balanced, and held out from training."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from pymllm.interfaces import Question
from pymllm_model_qwen3_vl.demo.drawing import draw
from pymllm_model_qwen3_vl.demo.held_out import SEED, TRAINING_SEED, held_out
from pymllm_model_qwen3_vl.demo.questions import KINDS_OF_QUESTIONS, Asked, ask
from pymllm_model_qwen3_vl.demo.scenes import Scene, Shape, Variety, make_scene, mirrored
from pymllm_model_qwen3_vl.demo.words import KINDS, Language

# A small red circle to the left, and two large shapes: a blue square to the right, a blue star below.
SCENE = Scene(
    150,
    150,
    "plain",
    (120, 120, 120),
    (
        Shape("circle", "red", "small", 25, 75, 18, 0.0),
        Shape("square", "blue", "large", 125, 75, 40, 0.0),
        Shape("star", "blue", "large", 75, 125, 40, 0.0),
    ),
)

RIGHT = {
    "colour": {
        "circle": "red",
        "square": "blue",
        "star": "blue",
        "small circle": "red",
        "large square": "blue",
        "large star": "blue",
    },
    "shape": {"red one": "circle", "small red one": "circle"},
    "count": {"shapes": "3", "circles": "1", "squares": "1", "stars": "1", "red shapes": "1", "blue shapes": "2"},
    "position": {
        "circle": "left",
        "red shape": "left",
        "red circle": "left",
        "square": "right",
        "blue square": "right",
        "star": "bottom",
        "blue star": "bottom",
    },
    "size": {
        "circle": "small",
        "red shape": "small",
        "red circle": "small",
        "square": "large",
        "blue square": "large",
        "star": "large",
        "blue star": "large",
    },
}
"""What can be asked of SCENE in English, and the answers, worked out by hand."""

COMPARED = {
    "larger": {("red circle", "blue square"): "blue square", ("red circle", "blue star"): "blue star"},
    "smaller": {("red circle", "blue square"): "red circle", ("red circle", "blue star"): "red circle"},
    "left": {
        ("red circle", "blue square"): "red circle",
        ("red circle", "blue star"): "red circle",
        ("blue square", "blue star"): "blue star",
    },
    "right": {
        ("red circle", "blue square"): "blue square",
        ("red circle", "blue star"): "blue star",
        ("blue square", "blue star"): "blue square",
    },
    "higher": {("red circle", "blue star"): "red circle", ("blue square", "blue star"): "blue square"},
    "lower": {("red circle", "blue star"): "blue star", ("blue square", "blue star"): "blue star"},
}
WORDS = {
    "larger": ("larger", "bigger"),
    "smaller": ("smaller",),
    "left": ("left",),
    "right": ("right",),
    "higher": ("higher", "further up"),
    "lower": ("lower", "further down"),
}


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return list(held_out())


def asked(kind: str, language: Language) -> Iterator[Asked]:
    for seed in range(300):
        found = ask(np.random.default_rng(seed), SCENE, kind, language)
        assert found is not None
        yield found


@pytest.mark.parametrize("kind", RIGHT)
def test_all_that_is_asked_has_the_right_answer(kind: str) -> None:
    seen = set()
    for question in asked(kind, "en"):
        [name] = [
            name
            for name in RIGHT[kind]
            if f"the {name} " in f"{question.text[:-1]} " or f"many {name} " in question.text
        ]
        assert question.answer == RIGHT[kind][name], question
        seen.add(name)
    assert seen == set(RIGHT[kind])


def test_comparisons_have_the_right_answer() -> None:
    seen = set()
    for question in asked("comparison", "en"):
        [what] = [what for what, words in WORDS.items() if any(word in question.text for word in words)]
        [(pair, answer)] = [
            (pair, answer) for pair, answer in COMPARED[what].items() if all(name in question.text for name in pair)
        ]
        assert question.answer == answer, question
        seen.add((what, pair))
    assert seen == {(what, pair) for what, pairs in COMPARED.items() for pair in pairs}


def test_chinese_answers_are_the_same_in_chinese() -> None:
    answers = {kind: {question.answer for question in asked(kind, "zh")} for kind in KINDS_OF_QUESTIONS}
    assert answers == {
        "colour": {"红色", "蓝色"},
        "shape": {"圆形"},
        "count": {"1", "2", "3"},
        "position": {"左边", "右边", "下面"},
        "size": {"大", "小"},
        "comparison": {"红色圆形", "蓝色方形", "蓝色星形"},
    }


def test_shapes_are_drawn_where_and_as_they_are() -> None:
    pixels = draw(SCENE, np.random.default_rng(0)).astype(int)
    red, blue, ground = pixels[75, 25], pixels[75, 125], pixels[10, 10]
    assert red[0] > red[1] + 100
    assert blue[2] > blue[0] + 100
    assert ground.tolist() == [120, 120, 120]
    painted = (pixels != 120).any(-1)
    rows, columns = np.nonzero(painted[:, :50])
    assert abs(rows.max() - rows.min() + 1 - 18) <= 2
    assert abs(columns.max() - columns.min() + 1 - 18) <= 2
    # A square's sides are 0.72 of its diameter.
    assert abs(painted[75, 100:].sum() - 0.72 * 40) <= 2


def test_every_kind_of_shape_looks_different() -> None:
    masks = []
    for kind in KINDS:
        scene = Scene(64, 64, "plain", (100, 100, 100), (Shape(kind, "red", "large", 32, 32, 40, 0.0),))
        masks.append((draw(scene, np.random.default_rng(0)) != 100).any(-1))
    differing = [(a != b).sum() for i, a in enumerate(masks) for b in masks[:i]]
    assert min(differing) > 100


def test_a_mirrored_scene_is_drawn_as_the_mirror_image() -> None:
    for seed in range(40):
        scene = replace(make_scene(np.random.default_rng(seed), Variety()), background="plain")
        first, second = (draw(shown, np.random.default_rng(0)).astype(int) for shown in (scene, mirrored(scene)))
        # Edges fall on other parts of a pixel.
        assert (np.abs(first[:, ::-1] - second).max(-1) > 100).mean() < 0.005


def test_the_held_out_questions_are_always_the_same(questions: list[Question]) -> None:
    again = held_out()
    for first, second in zip(questions[:40], again):
        assert (first.kind, first.text, first.answer) == (second.kind, second.text, second.answer)
        np.testing.assert_array_equal(first.images[0], second.images[0])


def test_guessing_the_commonest_answer_gives_little(questions: list[Question]) -> None:
    assert Counter(question.kind for question in questions) == dict.fromkeys(KINDS_OF_QUESTIONS, 240)
    for kind, most in {"colour": 20, "shape": 25, "count": 45, "position": 18, "size": 62, "comparison": 6}.items():
        counts = Counter(question.answer for question in questions if question.kind == kind)
        assert max(counts.values()) <= most, (kind, counts)
    assert all(1 <= len(question.answer.split()) <= 3 for question in questions)
    chinese = [question for question in questions if any("\u4e00" <= letter <= "\u9fff" for letter in question.text)]
    assert len(chinese) == len(questions) // 2


def test_pictures_are_of_many_sizes_within_bounds(questions: list[Question]) -> None:
    sizes = [question.images[0].shape[:2] for question in questions]
    assert min(map(min, sizes)) >= 64
    assert max(map(max, sizes)) <= 224
    assert max(max(size) / min(size) for size in sizes) <= 2.6
    assert len(set(sizes)) > 1000


def test_no_picture_is_both_held_out_and_trained_on(questions: list[Question]) -> None:
    digests = {sha256(question.images[0].tobytes()).digest() for question in questions}
    assert len(digests) == len(questions)
    rng = np.random.default_rng([TRAINING_SEED, 0, 0])
    trained = {sha256(draw(make_scene(rng, Variety()), rng).tobytes()).digest() for _ in range(500)}
    assert len(trained) == 500
    assert SEED != TRAINING_SEED
    assert not trained & digests


def test_an_easier_variety_keeps_to_what_it_names() -> None:
    variety = Variety(kinds=("star",), colours=("red", "blue"), most_shapes=2, sides=(64, 80))
    scenes = [make_scene(np.random.default_rng(seed), variety) for seed in range(100)]
    assert {shape.kind for scene in scenes for shape in scene.shapes} == {"star"}
    assert {shape.colour for scene in scenes for shape in scene.shapes} == {"red", "blue"}
    assert {len(scene.shapes) for scene in scenes} == {1, 2}
    assert max(max(scene.width, scene.height) for scene in scenes) <= 80


def test_the_evaluation_set_needs_no_torch() -> None:
    code = (
        "import sys; from pymllm_model_qwen3_vl.demo.held_out import held_out; next(iter(held_out()));"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
