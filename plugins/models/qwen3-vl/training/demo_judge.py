"""Accuracy over the held-out questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from demo_forward import answer_logits
from demo_samples import Course, resized
from demo_writing import IGNORED, Group, Writer

from pymllm_model_qwen3_vl.demo.held_out import held_out

BATCH = 256


@dataclass(frozen=True)
class Score:
    """Questions that were answered rightly, and all, by kind."""

    right: dict[str, int]
    asked: dict[str, int]

    @property
    def accuracy(self) -> float:
        return sum(self.right.values()) / max(sum(self.asked.values()), 1)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {self.right[kind] / self.asked[kind]:.3f}" for kind in self.asked)
        return f"accuracy {self.accuracy:.4f} ({kinds})"


class Judge:
    """Asks the held-out questions of the course's kinds.

    The right answer is given to the model along with the question, and counts if each of its tokens, the end included,
    is the likeliest one there: the greedy answer is the right one exactly then.
    """

    def __init__(self, course: Course, writer: Writer) -> None:
        alike = defaultdict(list)
        for question in held_out(course.variety, course.kinds):
            pixels = resized(question.images[0])
            alike[pixels.shape].append((question.kind, (pixels, [(question.text, question.answer)])))
        self._batches = [
            ([kind for kind, _ in part], writer.group([sample for _, sample in part]))
            for found in alike.values()
            for part in _parts(found)
        ]

    @torch.inference_mode()
    def __call__(self, model: Any, device: torch.device) -> Score:
        """In the precision that the model and autocast make."""
        right: dict[str, int] = defaultdict(int)
        asked: dict[str, int] = defaultdict(int)
        for kinds, group in self._batches:
            for kind, good in zip(kinds, _judged(model, group, device)):
                asked[kind] += 1
                right[kind] += good
        return Score(right, dict(sorted(asked.items())))


def _parts(found: list[Any]) -> Iterable[list[Any]]:
    return (found[i : i + BATCH] for i in range(0, len(found), BATCH))


def _judged(model: Any, group: Group, device: torch.device) -> Iterator[bool]:
    logits, wanted = answer_logits(model, [group], device)
    counts = (group.targets != IGNORED).sum(1).tolist()
    return (bool(part.all()) for part in (logits.argmax(-1) == wanted).cpu().split(counts))
