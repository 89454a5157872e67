"""The questions that a model is judged by: the same ones always, and none of them in training."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from pymllm.interfaces.evaluation import Question
from pymllm_model_qwen3_vl.demo.drawing import draw
from pymllm_model_qwen3_vl.demo.questions import KINDS_OF_QUESTIONS, Asked, ask
from pymllm_model_qwen3_vl.demo.scenes import Scene, Variety, make_scene
from pymllm_model_qwen3_vl.demo.words import LANGUAGES, Language

SEED, TRAINING_SEED, OTHER_SEED = 20260, 1, 2
"""First words of the seeds of pictures: whatever follows, they give different ones (NumPy's SeedSequence)."""

QUESTIONS = 1440
"""How many there are: 240 of each kind, half of them in each language."""

CHOICES = 8
"""Of so many scenes, the one is taken whose answer was right least often so far."""


def held_out(variety: Variety | None = None, kinds: Sequence[str] = KINDS_OF_QUESTIONS) -> Iterator[Question]:
    """The questions, kinds and languages in turn, so that a part from the start is balanced as well.

    Each has a picture of its own. Of the answers to a kind of question, each is right about equally often.
    variety, kinds: of an easier set; scenes of that variety must be able to answer questions of all these kinds.
    """
    return _questions(SEED, variety or Variety(), kinds)


def others() -> Iterator[Question]:
    """As many that are not held out."""
    return _questions(OTHER_SEED, Variety(), KINDS_OF_QUESTIONS)


def _questions(seed: int, variety: Variety, kinds: Sequence[str]) -> Iterator[Question]:
    answers: dict[tuple[str, Language], Counter[str]] = defaultdict(Counter)
    for number in range(QUESTIONS // len(KINDS_OF_QUESTIONS) * len(kinds)):
        rng = np.random.default_rng([seed, number])
        kind = kinds[number % len(kinds)]
        language = LANGUAGES[number // len(kinds) % len(LANGUAGES)]
        seen = answers[kind, language]
        choices = islice(_asked(rng, variety, kind, language), CHOICES)
        scene, asked = min(choices, key=lambda choice: seen[choice[1].answer])
        seen[asked.answer] += 1
        yield Question(kind, asked.text, asked.answer, (draw(scene, rng),))


def _asked(rng: np.random.Generator, variety: Variety, kind: str, language: Language) -> Iterator[tuple[Scene, Asked]]:
    while True:
        scene = make_scene(rng, variety)
        asked = ask(rng, scene, kind, language)
        if asked is not None:
            yield scene, asked
