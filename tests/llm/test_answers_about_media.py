"""Offline answers about pictures and videos equal transformers', with and without a prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pymllm import LLM, SamplingParams
from pymllm.errors import EngineDeadError, RequestError
from pymllm.testing import make_tiny_vision_checkpoint
from pymllm.testing.media_prompt import clip, picture
from qwen3_vl import Transformers
from seen import IMAGE, OPEN, VIDEO, image, said, text, user, video

TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
SMALL = {
    "engine.max_total_tokens": 4096, "model.dtype": "float32", "media.allow_http": False, "media.max_tokens": 128
}  # fmt: skip

A, B, C = picture(1, 70, 101), picture(2, 120, 40), picture(3, 64, 90)
FILM = clip(4, 4, 50, 66, fps=2.0)


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision_checkpoint(tmp_path_factory.mktemp("vision") / "tiny")


@pytest.fixture(scope="module")
def expect(vision: Path) -> Callable[..., list[int]]:
    reference = Transformers(vision)
    reference.model.generation_config.eos_token_id = None
    return lambda prompt, *media: reference.answer(prompt, media, TOKENS)


@pytest.fixture(scope="module", params=["radix", "chunk"])
def seeing(vision: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    settings = {**SMALL, "cache.plugin": request.param, "engine.max_batch_tokens": 32}
    with LLM(vision, settings, progress=False) as llm:
        yield llm


def tokens(outputs: Any) -> list[int]:
    [output] = outputs
    return output.outputs[0].token_ids


def test_pictures_at_several_places(seeing: LLM, expect: Any) -> None:
    conversations = [
        [user(image(A), text("what?"))],
        [user(text("one"), image(A), text("two"), image(B), image(C), text("end"))],
        [user(text("what?"), image(B))],
        [user(video(FILM, fps=2.0), text("what?"))],
        [user(image(A), video(FILM, fps=2.0), image(B))],
        [user(text("hello"))],
    ]
    expected = [
        expect(said("user", f"{IMAGE}what?") + OPEN, A),
        expect(said("user", f"one{IMAGE}two{IMAGE}{IMAGE}end") + OPEN, A, B, C),
        expect(said("user", f"what?{IMAGE}") + OPEN, B),
        expect(said("user", f"{VIDEO}what?") + OPEN, FILM),
        expect(said("user", IMAGE + VIDEO + IMAGE) + OPEN, A, FILM, B),
        expect(said("user", "hello") + OPEN),
    ]
    answers = seeing.chat(conversations, GREEDY)
    assert [one.outputs[0].token_ids for one in answers] == expected
    assert expected[0] != expect(said("user", f"{IMAGE}what?") + OPEN, C), "the answer depends on the picture"


def test_turns_reuse_what_was_computed(seeing: LLM, expect: Any) -> None:
    seeing.frontend.client.reset_cache()
    first = [user(image(C), text("what is it?"))]
    [answer] = seeing.chat(first, GREEDY)
    assert answer.outputs[0].token_ids == expect(said("user", f"{IMAGE}what is it?") + OPEN, C)
    turns = [*first, {"role": "assistant", "content": "a picture"}, user(text("and"), image(B))]
    prompt = said("user", f"{IMAGE}what is it?") + said("assistant", "a picture") + said("user", f"and{IMAGE}") + OPEN
    for shared in (0, 1):
        [answer] = seeing.chat(turns, GREEDY)
        assert answer.outputs[0].token_ids == expect(prompt, C, B)
        caches = seeing.config.cache.plugin == "radix"
        least = len(answer.prompt_token_ids) - 17 if shared else 16
        assert (answer.num_cached_tokens >= least) if caches else answer.num_cached_tokens == 0


def test_the_same_words_about_another_picture(seeing: LLM, expect: Any) -> None:
    changed = A.copy()
    changed[20:60, 20:60] = 255 - changed[20:60, 20:60]
    for pixels in (A, changed, A):
        found = tokens(seeing.chat([user(text("describe"), image(pixels))], GREEDY))
        assert found == expect(said("user", f"describe{IMAGE}") + OPEN, pixels)


def test_python_values(seeing: LLM, expect: Any, tmp_path: Path) -> None:
    Image.fromarray(A).save(tmp_path / "a.png")
    expected = expect(said("user", f"{IMAGE}x") + OPEN, A)
    for value in (
        A,
        Image.fromarray(A),
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        (tmp_path / "a.png").read_bytes(),
    ):
        assert tokens(seeing.chat([user({"type": "image", "image": value}, text("x"))], GREEDY)) == expected
    frames = [Image.fromarray(frame) for frame in FILM.frames]
    for film in (FILM.frames, frames):
        part = {"type": "video", "video": film, "fps": 2.0}
        expected = expect(said("user", f"{VIDEO}x") + OPEN, FILM)
        assert tokens(seeing.chat([user(part, text("x"))], GREEDY)) == expected


def test_prompts_with_placeholders(seeing: LLM, expect: Any) -> None:
    prompt = f"a {IMAGE} b {VIDEO} c {IMAGE}"
    film = {"type": "video", "video": FILM.frames, "fps": 2.0}
    expected = expect(prompt, A, FILM, B)
    [found] = seeing.generate({"prompt": prompt, "images": [A, Image.fromarray(B)], "videos": [film]}, GREEDY)
    assert (found.prompt, found.outputs[0].token_ids) == (prompt, expected)
    assert len(found.prompt_token_ids) > len(seeing.frontend.encode(prompt))
    ids = seeing.frontend.encode(prompt)
    assert tokens(seeing.generate({"prompt_token_ids": ids, "images": [A, B], "videos": [film]}, GREEDY)) == expected
    streamed = seeing.stream({"prompt": prompt, "images": [A, B], "videos": [film]}, GREEDY)
    assert [token for delta in streamed for token in delta.token_ids] == expected
    placed = seeing.read_chat([user(image(A), text("x"))])
    assert [t for d in seeing.stream(placed, GREEDY) for t in d.token_ids] == expect(
        said("user", f"{IMAGE}x") + OPEN, A
    )


def test_answers_of_one_prompt(seeing: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)
    [together] = seeing.chat([user(image(A), text("x"))], params)
    alone = [
        tokens(seeing.chat([user(image(A), text("x"))], SamplingParams(seed=5 + i, max_tokens=6, ignore_eos=True)))
        for i in range(3)
    ]
    assert [one.token_ids for one in together.outputs] == alone


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ({"prompt": "x", "images": [A]}, "placeholders of 0 images and 0 videos, but there are 1 images and 0 videos"),
        ({"prompt": IMAGE, "images": [A, B]}, "placeholders of 1 images and 0 videos, but there are 2 images"),
        ({"prompt": IMAGE, "videos": [FILM.frames]}, "placeholders of 1 images and 0 videos, but there are 0 images"),
        ({"prompt": IMAGE}, "placeholders of 1 images"),
        ({"prompt": IMAGE, "images": A}, "images must be a list"),
        ({"prompt": IMAGE, "images": [3]}, r"images\[0\]: image: must be a path, a URL, bytes, a PIL image or a NumPy"),
        ({"prompt": IMAGE, "images": ["/no/such.png"]}, r"images\[0\]: "),
        ({"prompt": IMAGE, "images": [b"broken"]}, r"images\[0\]: the file is of no known format"),
        ({"prompt": IMAGE, "images": [{"type": "video", "video": [A]}]}, "is no image"),
        ({"prompt": IMAGE, "images": [np.zeros((3, 3))]}, r"images\[0\]: "),
        ({"prompt": IMAGE, "pictures": [A]}, 'may hold "images" and "videos"'),
        ({"images": [A]}, 'either "prompt" or "prompt_token_ids"'),
        ({"prompt_token_ids": ["a"], "images": [A]}, "must be a list of token ids"),
        ({"prompt_token_ids": [2**70], "images": [A]}, "token ids of prompt must be from 0 to"),
        ({"prompt_token_ids": [2**70]}, "outside the vocabulary"),
    ],
)
def test_what_does_not_match_is_refused_before_anything_runs(seeing: LLM, prompt: Any, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        seeing.generate(prompt, GREEDY)
    with pytest.raises(RequestError, match=r"^prompts\[1\]: "):
        seeing.generate(["fine", prompt], GREEDY)
    assert seeing.frontend.client.stats().running == 0


def test_a_model_of_text_alone_says_so(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\].content\[0\]: image_url is not supported by this model"):
        llm.chat([user(image(A))], GREEDY)
    with pytest.raises(RequestError, match=r"images\[0\]: this model takes text only"):
        llm.generate({"prompt": "x", "images": [A]}, GREEDY)


def test_the_engine_may_be_a_process_of_its_own(vision: Path, expect: Any) -> None:
    with LLM(vision, {**SMALL, "engine.process": True}, progress=False) as llm:
        [answer] = llm.chat(
            [user(image(A), video(FILM, fps=2.0), text("x"))],
            SamplingParams(n=2, temperature=0, max_tokens=TOKENS, ignore_eos=True),
        )
        expected = expect(said("user", f"{IMAGE}{VIDEO}x") + OPEN, A, FILM)
        assert [one.token_ids for one in answer.outputs] == [expected, expected]


def test_after_the_end(vision: Path) -> None:
    llm = LLM(vision, SMALL, progress=False)
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError):
        llm.chat([user(image(A))], GREEDY)
