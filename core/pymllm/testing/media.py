"""The conformance kit of models that take images and videos. Subclass it beside :class:`ModelConformance`::

    class TestMyModelSees(MediaModelConformance):
        image_placeholder, video_placeholder = "<image>", "<video>"

        @pytest.fixture
        def checkpoint(self, tmp_path):
            return make_tiny_vision_checkpoint(tmp_path / "checkpoint")

        @pytest.fixture
        def factory(self):
            return MyModel

        @pytest.fixture
        def make_processor(self):
            return MyProcessor

        @pytest.fixture
        def reference(self, checkpoint):
            return lambda text, media: ...

It needs pytest. Pictures are at most 120 pixels wide and high.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pymllm.errors import RequestError
from pymllm.interfaces import MediaProcessor, Placed, ProcessorContext
from pymllm.testing.batch import Chunk
from pymllm.testing.harness import Harness, MakeAttention, load_model
from pymllm.testing.media_prompt import Clip, MediaPrompt, Medium, clip, media_item, picture, processed
from pymllm.testing.model import BATCH_BOUND, FLOAT32_BOUND, Factory, difference
from pymllm.testing.reference import ReferenceAttention


@dataclass(frozen=True)
class Expected:
    """What a reference makes of a prompt: its tokens with placeholders expanded, and logits [T, V] of all of them."""

    token_ids: list[int]
    logits: Tensor


Reference = Callable[[str, Sequence[Medium]], Expected]

CASES: dict[str, list[str | Medium]] = {
    "text": ["There is no picture here."],
    "an image": ["See ", picture(1, 70, 101), " this."],
    "four images": [picture(2, 33, 90), picture(3, 120, 40), " and ", picture(4, 64, 64), picture(5, 97, 71), "?"],
    "a video": ["A video: ", clip(6, 5, 50, 66), " of what?"],
    "images and videos": [clip(7, 2, 40, 90), "then ", picture(8, 110, 50), clip(9, 3, 70, 70), picture(10, 50, 80)],
}
"""Prompts: text, and media between."""


class MediaModelConformance:
    """What a model with media and its processor must do (:mod:`pymllm.interfaces.media`).

    image_placeholder, video_placeholder: what a chat template writes for one.
    """

    image_placeholder: str
    video_placeholder: str

    @pytest.fixture
    def checkpoint(self) -> Path:
        """A checkpoint folder with a tokenizer. Override this fixture."""
        raise NotImplementedError("override the fixture checkpoint in your subclass of MediaModelConformance")

    @pytest.fixture
    def factory(self) -> Factory:
        """The model's factory (the class itself). Override this fixture."""
        raise NotImplementedError("override the fixture factory in your subclass of MediaModelConformance")

    @pytest.fixture
    def make_processor(self) -> Callable[..., MediaProcessor]:
        """The processor's factory. Override this fixture."""
        raise NotImplementedError("override the fixture make_processor in your subclass of MediaModelConformance")

    @pytest.fixture
    def reference(self, checkpoint: Path) -> Reference:
        """``reference(text, media)`` from another implementation, in float32. Override this fixture."""
        raise NotImplementedError("override the fixture reference in your subclass of MediaModelConformance")

    @pytest.fixture
    def make_attention(self) -> MakeAttention:
        """Builds the attention backend from its context; the kit's own unless overridden."""
        return ReferenceAttention

    @pytest.fixture
    def harness(self, checkpoint: Path, factory: Factory, make_attention: MakeAttention) -> Harness:
        """The model in float32."""
        return load_model(checkpoint, factory, make_attention=make_attention)

    @pytest.fixture
    def encode(self, checkpoint: Path) -> Callable[[str], list[int]]:
        """Text to tokens, without special tokens around it."""
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
        return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]

    @pytest.fixture
    def processor(
        self, checkpoint: Path, harness: Harness, make_processor: Callable[..., MediaProcessor], encode: Any
    ) -> MediaProcessor:
        return make_processor(harness.config, ProcessorContext(checkpoint, encode=encode))

    def text(self, case: Sequence[str | Medium]) -> str:
        """A case's prompt with placeholders."""
        written = {np.ndarray: self.image_placeholder, Clip: self.video_placeholder}
        return "".join(part if isinstance(part, str) else written[type(part)] for part in case)

    @pytest.fixture
    def make_prompt(self, harness: Harness, processor: MediaProcessor, encode: Any) -> Callable[[str], MediaPrompt]:
        """A case's prompt, by its name, processed, expanded and encoded."""
        return lambda name: MediaPrompt.make(harness, processor, encode(self.text(CASES[name])), _media(CASES[name]))

    # Numbers

    @pytest.mark.parametrize("name", CASES)
    def test_tokens_and_logits_equal_the_reference(
        self, harness: Harness, make_prompt: Any, reference: Reference, name: str
    ) -> None:
        expected = reference(self.text(CASES[name]), _media(CASES[name]))
        prompt = make_prompt(name)
        assert prompt.placed.token_ids == expected.token_ids
        assert difference(_whole(harness, prompt), expected.logits) <= FLOAT32_BOUND

    @pytest.mark.parametrize("size", [1, 7, 16, 45])
    def test_chunked_prefill_equals_whole(self, harness: Harness, make_prompt: Any, size: int) -> None:
        prompt = make_prompt("images and videos")
        count = len(prompt.placed.token_ids)
        pages = harness.page_list(count)
        starts = range(0, count, size)
        parts = [harness.run(prompt.chunk(pages, start, min(start + size, count)))[0] for start in starts]
        assert difference(torch.cat(parts), _whole(harness, prompt)) <= BATCH_BOUND

    def test_an_answer_goes_on_where_the_prompt_ends(self, harness: Harness, make_prompt: Any) -> None:
        """Decoded tokens equal those of the prompt with the answer in it."""
        short, answer = make_prompt("images and videos"), [5, 99, 17]
        count, axes = len(short.placed.token_ids), harness.model.position_axes
        pages = harness.page_list(count + len(answer))
        harness.run(short.chunk(pages))
        steps = [short.decode(pages, count + i, token, axes) for i, token in enumerate(answer)]
        decoded = torch.cat([harness.run(step)[0] for step in steps])
        whole = _whole(harness, MediaPrompt(_continued(short, answer), short.features))
        assert difference(decoded, whole[count:]) <= BATCH_BOUND

    def test_a_mixed_batch_equals_each_request_alone(self, harness: Harness, make_prompt: Any) -> None:
        """Text, the second half of a prompt, and a whole one share a step."""
        prompts = [make_prompt("text"), make_prompt("four images"), make_prompt("a video")]
        counts = [len(prompt.placed.token_ids) for prompt in prompts]
        starts = [0, counts[1] // 2, 0]
        alone = [_whole(harness, prompt)[start:] for prompt, start in zip(prompts, starts)]
        pages = [harness.page_list(count, skip=100 * row) for row, count in enumerate(counts)]
        harness.run(prompts[1].chunk(pages[1], 0, starts[1]))
        chunks: list[Chunk] = [prompt.chunk(own, start) for prompt, own, start in zip(prompts, pages, starts)]
        for row, logits in enumerate(harness.run(*chunks)):
            assert difference(logits, alone[row]) <= BATCH_BOUND, f"request {row}"

    # Encoding

    def test_media_encoded_together_equal_each_alone(self, harness: Harness, processor: MediaProcessor) -> None:
        media = [processed(processor, medium) for case in CASES.values() for medium in _media(case)]
        items = [media_item(medium) for medium in media]
        with torch.inference_mode():
            together = harness.model.encode_media(items)
            alone = [harness.model.encode_media([item])[0] for item in items]
        for medium, features, own in zip(media, together, alone):
            assert features.shape == own.shape == (medium.tokens, harness.model.media_width)
            assert features.dtype == harness.backend.context.dtype
            assert difference(features, own) <= BATCH_BOUND
            assert features.untyped_storage().nbytes() == features.numel() * features.element_size()
        assert harness.model.encode_media([]) == []

    @pytest.mark.parametrize("tokens", [1, 7, 50])
    def test_an_example_has_as_many_tokens_as_asked(self, harness: Harness, tokens: int) -> None:
        with torch.inference_mode():
            (features,) = harness.model.encode_media([harness.model.example_media(tokens)])
        assert tokens <= len(features) <= 1.25 * tokens + 4

    # The processor

    @pytest.mark.parametrize("name", CASES)
    def test_runs_cover_every_feature_row_once(self, processor: MediaProcessor, make_prompt: Any, name: str) -> None:
        prompt, media = make_prompt(name), [processed(processor, medium) for medium in _media(CASES[name])]
        rows = [(run.media, run.first + i) for run in prompt.placed.runs for i in range(run.length)]
        assert sorted(rows) == [(m, i) for m, medium in enumerate(media) for i in range(medium.tokens)]
        spans = [(run.start, run.end) for run in prompt.placed.runs]
        assert all(0 <= start < end for start, end in spans)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert all(medium.tokens <= processor.max_tokens for medium in media)

    def test_text_alone_stays_as_it_is(self, processor: MediaProcessor) -> None:
        placed = processor.place([5, 6, 7], [])
        assert (placed.token_ids, placed.runs, placed.positions, placed.position_delta) == ([5, 6, 7], (), None, 0)

    @pytest.mark.parametrize("given", [0, 1, 3])
    def test_a_wrong_number_of_media_is_refused(self, processor: MediaProcessor, encode: Any, given: int) -> None:
        media = [processor.image(picture(0, 64, 64))] * given
        with pytest.raises(RequestError, match=rf"\b2\b.*\b{given}\b"):
            processor.place(encode(2 * self.image_placeholder), media)

    def test_an_image_is_not_taken_for_a_video(self, processor: MediaProcessor, encode: Any) -> None:
        with pytest.raises(RequestError, match="video"):
            processor.place(encode(self.video_placeholder), [processor.image(picture(0, 64, 64))])

    def test_pixels_and_settings_follow_the_bounds(self, processor: MediaProcessor) -> None:
        """Smaller bounds make other features, and so another key; what is given stays as it is."""
        pixels = picture(0, 120, 120)
        pixels.flags.writeable = False
        large, again, small = processor.image(pixels), processor.image(pixels), processor.image(pixels, max_pixels=4096)
        assert large.settings == again.settings != small.settings
        assert np.array_equal(large.pixels, again.pixels)
        assert small.pixels[0, ..., 0].size <= 4096 < large.pixels[0, ..., 0].size
        assert small.tokens < large.tokens


def _media(case: Sequence[str | Medium]) -> list[Medium]:
    return [part for part in case if not isinstance(part, str)]


def _whole(harness: Harness, prompt: MediaPrompt) -> Tensor:
    """Logits of a prompt prefilled in one step."""
    return harness.run(prompt.chunk(harness.page_list(len(prompt.placed.token_ids))))[0]


def _continued(prompt: MediaPrompt, answer: list[int]) -> Placed:
    """The placed prompt with an answer after it, whose positions go on one by one after the largest."""
    placed = prompt.placed
    positions = placed.positions
    if positions is not None:
        after = int(positions.max()) + 1 + np.arange(len(answer))
        positions = np.concatenate([positions, np.tile(after, (len(positions), 1))], axis=1)
    return replace(placed, token_ids=placed.token_ids + answer, positions=positions)
