"""The contract of a model plugin's evaluation set: questions with one right answer each.

``ModelSpec.evaluation`` names a function without arguments that gives them, in an order of which any first part is a
fair sample: always the same questions, none of which the model was trained on. It runs in the process that asks, and
imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from pymllm.interfaces.media import Pixels


@dataclass(frozen=True, eq=False)
class Question:
    """What a user asks. kind: what accuracy is counted by. answer: the right one, word for word.

    images: shown before the text; uint8 [H, W, 3] each.
    """

    kind: str
    text: str
    answer: str
    images: tuple[Pixels, ...] = ()


Evaluation: TypeAlias = Callable[[], Iterable[Question]]
