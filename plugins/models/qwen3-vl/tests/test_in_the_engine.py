"""Pictures and videos in the engine: greedy answers are those of transformers, whatever the chunks, the cache and the
company; and nothing is encoded twice, or for tokens that the cache covers."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from engines import TINY, greedy
from pymllm.compose import compose
from pymllm.engine.assemble import assemble_parts
from pymllm.engine.engine import Engine
from pymllm.engine.messages import EngineRequest, Media, MediaInput
from pymllm.interfaces import ProcessorContext
from pymllm.interfaces.cache import CacheContext
from pymllm.testing.media_prompt import Clip, Medium, clip, picture, processed
from pymllm_model_qwen3_vl.processor import Qwen3VLProcessor

COUNT = 6
IMAGE, VIDEO = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
CASES: dict[str, tuple[str, list[Medium]]] = {
    "text": ("no picture here, only words", []),
    "one image": (f"{IMAGE}what is this?", [picture(1, 70, 130)]),
    "two images": (f"a {IMAGE} between {IMAGE} words", [picture(2, 64, 64), picture(3, 150, 40)]),
    "four images": (f"{IMAGE}{IMAGE} and {IMAGE}{IMAGE}", [picture(i, 40 + 11 * i, 90) for i in range(4, 8)]),
    "a video": (f"see {VIDEO} now", [clip(9, 5, 50, 66)]),
    "both": (f"{VIDEO} then {IMAGE} then", [clip(11, 3, 40, 70), picture(12, 99, 33)]),
}


def request(
    name: str, text: str, media: Sequence[Medium], processor: Any, tokenizer: Any, count: int = COUNT
) -> EngineRequest:
    """What the frontend makes of a prompt."""
    found = [processed(processor, medium) for medium in media]
    digests = [hashlib.sha256(m.pixels.tobytes()).digest() + m.settings for m in found]
    placed = processor.place(tokenizer(text, add_special_tokens=False)["input_ids"], found)
    return EngineRequest(
        id=name,
        token_ids=placed.token_ids,
        sampling=greedy(count),
        media=[
            Media(run.start, run.length, run.span(digests[run.media]).digest, run.media, run.first)
            for run in placed.runs
        ],
        inputs=[
            MediaInput(m.kind, digest, m.grid, m.pixels.shape, m.pixels.tobytes(), m.tokens)
            for m, digest in zip(found, digests)
        ],
        positions=b"" if placed.positions is None else np.ascontiguousarray(placed.positions, "<i4").tobytes(),
        position_delta=placed.position_delta,
    )


class Served:
    """An engine that is stepped by hand, with the store of its features."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        config = compose(None, {"model.path": str(folder), "media.max_tokens": 128, **TINY, **overrides})
        parts = assemble_parts(config, progress=False)
        policy = parts.cache.factory(parts.cache.options, CacheContext(parts.info.page_size, parts.info.pages))
        assert parts.media is not None
        self.store, self.info = parts.media, parts.info
        self.engine = Engine(
            parts.info, parts.runner, policy, seed=0, overlap=parts.overlap, knows_media=parts.media.knows
        )
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = Qwen3VLProcessor(
            dict(_config(folder)), ProcessorContext(folder, None, lambda text: self.tokenizer.encode(text))
        )

    def answers(
        self, cases: Sequence[tuple[str, Sequence[Medium]]], prefix: str = "", count: int = COUNT
    ) -> list[list[int]]:
        """All at once."""
        names = [f"{prefix}{i}" for i in range(len(cases))]
        for name, (text, media) in zip(names, cases):
            self.engine.submit(request(name, text, media, self.processor, self.tokenizer, count))
        found: dict[str, list[int]] = {name: [] for name in names}
        while self.engine.has_work:
            for output in self.engine.step():
                assert output.finish_reason in (None, "length"), output.error
                found[output.id] += output.token_ids
        self.engine.check_integrity()
        return [found[name] for name in names]


def _config(folder: Path) -> dict[str, Any]:
    import json

    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def expected(transformers64: Any) -> dict[str, list[int]]:
    """By transformers' ``generate``."""
    answers = {}
    for name, (text, media) in CASES.items():
        inputs = transformers64.inputs(text, media)
        with torch.inference_mode():
            ids = transformers64.model.generate(
                **inputs, max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        answers[name] = ids[0, inputs["input_ids"].shape[1] :].tolist()
    return answers


@pytest.mark.parametrize("budget", [512, 64, 33, 16])
@pytest.mark.parametrize("cache", ["radix", "chunk"])
def test_answers_are_those_of_transformers(tiny: Path, expected, cache: str, budget: int) -> None:
    served = Served(tiny, **{"engine.max_batch_tokens": budget, "cache.plugin": cache})
    wanted = [expected[name] for name in CASES]
    assert served.answers(list(CASES.values())) == wanted
    assert served.answers(list(CASES.values()), "again") == wanted  # from the cache, where it keeps
    media = sum(len(media) for _, media in CASES.values())
    assert served.store.encoded == media


def test_answers_with_preemptions(tiny: Path, expected) -> None:
    served = Served(tiny, **{"engine.max_total_tokens": 176, "cache.page_size": 4, "cache.plugin": "chunk"})
    found = served.answers(list(CASES.values()), count=40)
    assert [answer[:COUNT] for answer in found] == [expected[name] for name in CASES]
    assert served.engine.stats().total_preemptions > 0


def test_another_picture_never_shares_and_the_same_one_does(tiny: Path) -> None:
    served = Served(tiny, **{"cache.page_size": 4})
    text = f"{IMAGE} is what I see, and more words follow"
    pictures = [picture(seed, 100, 100) for seed in (1, 2)]
    alone = [Served(tiny).answers([(text, [each])])[0] for each in pictures]
    assert alone[0] != alone[1]
    assert served.answers([(text, [each]) for each in pictures], "a") == alone
    before = served.engine.stats().total_cached_tokens
    assert before < 4 * 2  # no page reaches past the first token of an image
    assert served.answers([(text, [pictures[0]])], "b") == alone[:1]
    assert served.engine.stats().total_cached_tokens - before == 32  # of 36 tokens all pages but the last one's
    assert served.store.encoded == 2


def test_what_the_prefix_cache_covers_is_not_encoded(tiny: Path) -> None:
    served = Served(tiny, **{"cache.page_size": 4, "media.cache_bytes": 0})  # features are dropped at once
    case = (f"{IMAGE} and a question", [picture(1, 100, 100)])
    first = served.answers([case], "a")
    assert (served.store.encoded, served.store.knows(b"")) == (1, False)
    assert served.answers([case], "b") == first
    assert served.store.encoded == 1
    served.engine.reset_cache()
    assert served.answers([case], "c") == first
    assert served.store.encoded == 2


def test_features_in_use_are_never_dropped(tiny: Path, expected) -> None:
    served = Served(tiny, **{"engine.max_batch_tokens": 16, "media.cache_bytes": 0, "cache.plugin": "chunk"})
    names = ["four images", "both", "two images"]
    assert served.answers([CASES[name] for name in names]) == [expected[name] for name in names]
    assert served.store.encoded == 8
    assert not any(served.store.knows(digest) for digest in list(served.store._entries))


def test_a_picture_larger_than_a_step_beside_endless_decodes(tiny: Path, expected) -> None:
    """Its encoding alone is more than a step's tokens, and requests that decode never leave it all of them."""
    served = Served(tiny, **{"engine.max_batch_tokens": 8, "engine.max_running_requests": 8})
    for i in range(4):
        served.engine.submit(request(f"endless{i}", "words", [], served.processor, served.tokenizer, 200))
    for _ in range(8):
        served.engine.step()
    text, media = CASES["one image"]
    served.engine.submit(request("picture", text, media, served.processor, served.tokenizer))
    found: list[int] = []
    for _ in range(60):
        for output in served.engine.step():
            if output.id == "picture":
                found += output.token_ids
    assert found == expected["one image"]


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [512, 16])
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("attention", ["torch", "triton"])
def test_answers_on_a_gpu(tiny: Path, expected, attention: str, graphs: bool, budget: int) -> None:
    options = {"engine.cuda_graphs": graphs and attention != "torch", "engine.max_batch_tokens": budget}
    served = Served(tiny, **{"engine.device": "cuda", "attention.plugin": attention, **options})
    wanted = [expected[name] for name in CASES]
    assert served.answers(list(CASES.values())) == wanted
    assert served.answers(list(CASES.values()), "again") == wanted


def test_through_messages(tiny: Path) -> None:
    """What crosses to an engine process is what was sent."""
    import msgspec

    served = Served(tiny)
    spec = request("x", *CASES["both"], served.processor, served.tokenizer)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=EngineRequest)
    assert again == spec
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    served.engine.submit(again)
    while served.engine.has_work:
        for output in served.engine.step():
            for token in output.token_ids:
                arrived.put(token)
    assert arrived.qsize() == COUNT
    assert isinstance(CASES["both"][1][0], Clip)
