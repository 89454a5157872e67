"""Training samples: pictures with several questions each, in groups of pictures of one size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from demo_files import SIDES
from demo_writing import UNIT, Group, Pixels, Sample, Writer
from PIL import Image
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset, get_worker_info

from pymllm_model_qwen3_vl.demo.drawing import draw
from pymllm_model_qwen3_vl.demo.held_out import TRAINING_SEED
from pymllm_model_qwen3_vl.demo.questions import KINDS_OF_QUESTIONS, ask
from pymllm_model_qwen3_vl.demo.scenes import Scene, Variety, make_scene, mirrored, pick
from pymllm_model_qwen3_vl.demo.words import LANGUAGES
from pymllm_model_qwen3_vl.resizing import image_size
from pymllm_model_qwen3_vl.settings import Bounds

CURRICULUM = ((0.08, 2), (0.2, 4))
"""Until that part of the training, at most so many shapes."""


@dataclass(frozen=True)
class Course:
    """What is practised. kinds: of questions. questions: of a picture, at most. pictures: of a group."""

    variety: Variety = field(default_factory=Variety)
    kinds: tuple[str, ...] = KINDS_OF_QUESTIONS
    questions: int = 9
    pictures: int = 64

    def at(self, progress: float) -> Course:
        """What is practised when that part (0 to 1) of the training is over."""
        most = next((shapes for until, shapes in CURRICULUM if progress < until), self.variety.most_shapes)
        return replace(self, variety=replace(self.variety, most_shapes=min(most, self.variety.most_shapes)))


class Samples(IterableDataset[Group]):
    """Endless groups. progress: read whenever a picture is made. run: differs when training goes on after a stop, so
    that it sees other pictures."""

    def __init__(self, course: Course, tokenizer: Tokenizer, progress: Any, run: int) -> None:
        self._course, self._tokenizer = course, tokenizer
        self._progress, self._run = progress, run

    def __iter__(self) -> Iterator[Group]:
        worker, writer = get_worker_info(), Writer(self._tokenizer)
        rng = np.random.default_rng([TRAINING_SEED, self._run, worker.id if worker else 0])
        waiting: dict[tuple[int, ...], list[Sample]] = defaultdict(list)
        while True:
            course = self._course.at(self._progress.value)
            for pixels, asked in make_samples(rng, course):
                alike = waiting[pixels.shape]
                alike.append((pixels, asked))
                if len(alike) == course.pictures:
                    yield writer.group(waiting.pop(pixels.shape), rng)


def make_samples(rng: np.random.Generator, course: Course) -> Iterator[Sample]:
    """A picture and its mirror image, each with questions of its own. The mirror image is a picture like any other to
    learn from, but takes no time to draw."""
    scene = make_scene(rng, course.variety)
    pixels = _roughly_resized(draw(scene, rng))
    for shown, view in ((scene, pixels), (mirrored(scene), torch.from_numpy(pixels).flip(1).numpy())):
        asked = _questions(rng, shown, course)
        if asked:
            yield view, asked


def _questions(rng: np.random.Generator, scene: Scene, course: Course) -> list[tuple[str, str]]:
    """Different ones with their answers: of each kind one or two, as far as there are any."""
    found: dict[str, str] = {}
    for number in rng.permutation(2 * len(course.kinds)).tolist():
        asked = ask(rng, scene, course.kinds[number // 2], pick(rng, LANGUAGES))
        if asked is not None:
            found[asked.text] = asked.answer
            if len(found) == course.questions:
                break
    return list(found.items())


def resized(pixels: Pixels) -> Pixels:
    """As the checkpoint's image processor resizes."""
    size = _size(pixels)
    if size == pixels.shape[:2]:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BICUBIC))


def _roughly_resized(pixels: Pixels) -> Pixels:
    """As ``resized`` but for one value in fifty, four times as fast."""
    size = _size(pixels)
    if size == pixels.shape[:2]:
        return pixels
    image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    result = F.interpolate(image, size=size, mode="bicubic", antialias=True, align_corners=False)
    return result[0].permute(1, 2, 0).numpy()


def _size(pixels: Pixels) -> tuple[int, int]:
    return image_size(pixels.shape[:2], UNIT, Bounds(*(side * side for side in SIDES)))
