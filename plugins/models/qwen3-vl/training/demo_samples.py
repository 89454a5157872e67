"""Training samples: pictures of one size with several questions each, as arrays.

Shape letters: N pictures of a group, L tokens of a sequence, H and W pixels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from demo_files import SIDES
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from pymllm_model_qwen3_vl.demo.drawing import draw
from pymllm_model_qwen3_vl.demo.held_out import TRAINING_SEED
from pymllm_model_qwen3_vl.demo.questions import KINDS_OF_QUESTIONS, ask
from pymllm_model_qwen3_vl.demo.scenes import Variety, make_scene, pick
from pymllm_model_qwen3_vl.demo.words import LANGUAGES
from pymllm_model_qwen3_vl.resizing import image_size
from pymllm_model_qwen3_vl.settings import Bounds

UNIT = 32
"""Pixels of an image token, down as well as across."""

IGNORED = -100
"""The target where there is nothing to learn."""

CURRICULUM = ((0.08, 2), (0.2, 4))
"""Until that part of the training, at most so many shapes."""

CONVERSATIONS = 0.15
"""Of the pictures: their questions follow one another as the turns of one conversation."""

Pixels = npt.NDArray[np.uint8]
QuestionAndAnswer = tuple[str, str]


class Group(NamedTuple):
    """Pictures that are resized alike, and a sequence for each.

    pixels: uint8 [N, H, W, 3]. tokens: [N, L]. positions: [3, N, L], of M-RoPE. segments: [N, L]; a token sees those
    before it that are of its own segment or of 0. targets: [N, L], the next token where it belongs to an answer.
    """

    pixels: Tensor
    tokens: Tensor
    positions: Tensor
    segments: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Course:
    """What is practised. kinds: of questions. questions: of a picture, at most."""

    variety: Variety = field(default_factory=Variety)
    kinds: tuple[str, ...] = KINDS_OF_QUESTIONS
    questions: int = 7
    pictures: int = 64

    def at(self, progress: float) -> Course:
        """What is practised when that part (0 to 1) of the training is over."""
        most = next((shapes for until, shapes in CURRICULUM if progress < until), self.variety.most_shapes)
        return replace(self, variety=replace(self.variety, most_shapes=min(most, self.variety.most_shapes)))


class Samples(IterableDataset[Group]):
    """Endless groups. progress: read whenever a picture is made. run: differs when training goes on after a stop, so
    that it sees other pictures."""

    def __init__(self, course: Course, tokenizer: Tokenizer, progress: Any, run: int) -> None:
        self._course, self._writer = course, Writer(tokenizer)
        self._progress, self._run = progress, run

    def __iter__(self) -> Iterator[Group]:
        worker = get_worker_info()
        rng = np.random.default_rng([TRAINING_SEED, self._run, worker.id if worker else 0])
        waiting: dict[tuple[int, ...], list[tuple[Pixels, list[QuestionAndAnswer]]]] = defaultdict(list)
        while True:
            course = self._course.at(self._progress.value)
            pixels, asked = _sample(rng, course)
            if not asked:
                continue
            alike = waiting[pixels.shape]
            alike.append((pixels, asked))
            if len(alike) == course.pictures:
                yield self._writer.group(waiting.pop(pixels.shape), rng)


def _sample(rng: np.random.Generator, course: Course) -> tuple[Pixels, list[QuestionAndAnswer]]:
    scene = make_scene(rng, course.variety)
    kinds = [str(kind) for kind in rng.permutation([*course.kinds, *course.kinds[-1:]])]  # the last is the rarest
    found = (ask(rng, scene, kind, pick(rng, LANGUAGES)) for kind in kinds)
    asked = [(one.text, one.answer) for one in found if one is not None]
    return resized(draw(scene, rng)), asked[: course.questions]


def resized(pixels: Pixels) -> Pixels:
    """As the checkpoint's image processor resizes."""
    size = image_size(pixels.shape[:2], UNIT, Bounds(*(side * side for side in SIDES)))
    if size == pixels.shape[:2]:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BICUBIC))


class Writer:
    """Writes pictures and questions as the chat template does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        [self._pad] = self._encode("<|endoftext|>")
        [self._image] = self._encode("<|image_pad|>")
        self._start = self._encode("<|im_start|>user\n<|vision_start|>")
        self._end = self._encode("<|vision_end|>")
        self._answer = self._encode("<|im_end|>\n<|im_start|>assistant\n")
        self._stop = self._encode("<|im_end|>")
        self._turn = self._encode("\n<|im_start|>user\n")

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def group(
        self, samples: Sequence[tuple[Pixels, list[QuestionAndAnswer]]], rng: np.random.Generator | None = None
    ) -> Group:
        """All pictures must be of one size. rng: chooses which are conversations; None: none is."""
        rows = (samples[0][0].shape[0] // UNIT, samples[0][0].shape[1] // UNIT)
        chats = [rng is not None and rng.random() < CONVERSATIONS for _ in samples]
        sequences = [self._sequence(asked, rows, chat) for (_, asked), chat in zip(samples, chats)]
        length = max(len(tokens) for tokens, *_ in sequences)
        shape = (len(samples), length)
        tokens, targets = np.full(shape, self._pad), np.full(shape, IGNORED)
        segments = np.full(shape, -1)
        positions = np.zeros((3, *shape), dtype=np.int64)
        for i, (ids, places, parts, next_ids) in enumerate(sequences):
            tokens[i, : len(ids)], segments[i, : len(ids)], targets[i, : len(ids)] = ids, parts, next_ids
            positions[:, i, : len(ids)] = places
        pixels = np.stack([picture for picture, _ in samples])
        return Group(*map(torch.from_numpy, (pixels, tokens, positions, segments, targets)))

    def _sequence(
        self, asked: Iterable[QuestionAndAnswer], rows: tuple[int, int], chat: bool
    ) -> tuple[list[int], npt.NDArray[np.int64], list[int], list[int]]:
        """Tokens, positions, segments, targets. Questions see the picture, but not each other unless it is a chat."""
        before, (down, across) = len(self._start), rows
        after = before + max(rows)
        tokens = [*self._start, *[self._image] * (down * across), *self._end]
        places = np.arange(before + down * across + 1)[None].repeat(3, 0)
        places[:, before:-1] = before + np.stack(
            [np.zeros(down * across), np.arange(down * across) // across, np.arange(down * across) % across]
        )
        places[:, -1] = after
        parts, targets, position = [0] * len(tokens), [IGNORED] * len(tokens), after + 1
        columns = [places]
        for number, (question, answer) in enumerate(asked):
            lead = [*(self._turn if chat and number else ()), *self._encode(question), *self._answer]
            told = [*self._encode(answer), *self._stop]
            tokens += [*lead, *told]
            targets += [*[IGNORED] * (len(lead) - 1), *told, IGNORED]
            parts += [0 if chat else number + 1] * (len(lead) + len(told))
            columns.append(position + np.arange(len(lead) + len(told))[None].repeat(3, 0))
            position += len(lead) + len(told) if chat else 0
        return tokens, np.concatenate(columns, 1), parts, targets
