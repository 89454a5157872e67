"""Messages with pictures and videos become the engine requests that transformers' processor would make of them."""

from __future__ import annotations

import asyncio
import io
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pymllm.config import MediaConfig
from pymllm.engine.messages import EngineRequest
from pymllm.errors import RequestError
from pymllm.frontend.frontend import Frontend
from pymllm.frontend.media import MediaPlacer
from pymllm.interfaces import ProcessorContext
from pymllm.sampling import SamplingParams
from pymllm.testing import make_tiny_vision_checkpoint
from pymllm.testing.media_prompt import clip, picture
from pymllm_model_qwen3_vl.processor import Qwen3VLProcessor
from qwen3_vl import Transformers
from seen import IMAGE, OPEN, VIDEO, image, png_url, said, text, user, video


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision_checkpoint(tmp_path_factory.mktemp("vision") / "tiny")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Transformers:
    return Transformers(folder)


@pytest.fixture
def make(folder: Path, reference: Transformers, client: Any) -> Any:
    """``make(media=True, max_tokens=100, **media section)`` -> a frontend over a scripted client."""
    tokenizer = reference.processor.tokenizer
    config = json.loads((folder / "config.json").read_text())
    made: list[Frontend] = []

    def make(*, media: bool = True, max_tokens: int = 100, **section: Any) -> Frontend:
        encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
        processor = Qwen3VLProcessor(config, ProcessorContext(folder, encode=encode))
        placer = MediaPlacer(processor, MediaConfig(**{"allow_http": False, **section}), max_tokens) if media else None
        client.info.max_context = client.info.max_request_tokens = 2048
        client.info.vocab_size = len(tokenizer)
        frontend = Frontend(
            client, tokenizer, generation_defaults={}, eos_token_ids=[], model_name="tiny", media=placer
        )
        made.append(frontend)
        return frontend

    yield make
    for frontend in made:
        frontend.close()


def requests_of(frontend: Frontend, messages: Any, n: int = 1, **options: Any) -> list[EngineRequest]:
    placed = asyncio.run(asyncio.wait_for(frontend.place(frontend.read_chat(messages, **options)), 30))
    return frontend.prepare(placed, SamplingParams(n=n)).requests


A, B, C = picture(1, 70, 101), picture(2, 120, 40), picture(3, 64, 90)
FILM = clip(4, 4, 50, 66, fps=2.0)

CONVERSATIONS: dict[str, tuple[list[Any], str, list[Any]]] = {
    "before the text": ([user(image(A), text("what?"))], said("user", f"{IMAGE}what?"), [A]),
    "after the text": ([user(text("what?"), image(A))], said("user", f"what?{IMAGE}"), [A]),
    "alone": ([user(image(A))], said("user", IMAGE), [A]),
    "among text": (
        [user(text("one"), image(A), text("two"), image(B), image(C), text("end"))],
        said("user", f"one{IMAGE}two{IMAGE}{IMAGE}end"),
        [A, B, C],
    ),
    "in several turns": (
        [
            {"role": "system", "content": "see"},
            user(image(A), text("what?")),
            {"role": "assistant", "content": "a"},
            user(text("and"), image(B)),
        ],
        said("system", "see") + said("user", f"{IMAGE}what?") + said("assistant", "a") + said("user", f"and{IMAGE}"),
        [A, B],
    ),
    "a video": ([user(video(FILM, fps=2.0), text("what?"))], said("user", f"{VIDEO}what?"), [FILM]),
    "a video between images": (
        [user(image(A), video(FILM, fps=2.0), image(B))],
        said("user", IMAGE + VIDEO + IMAGE),
        [A, FILM, B],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_requests_equal_transformers_inputs(make: Any, reference: Transformers, name: str) -> None:
    messages, prompt, media = CONVERSATIONS[name]
    inputs = reference.inputs(prompt + OPEN, media)
    [request] = requests_of(make(), messages)
    assert request.token_ids == inputs["input_ids"][0].tolist()
    kinds = inputs["mm_token_type_ids"][0].tolist()
    covered = [i for run in request.media for i in range(run.start, run.start + run.length)]
    assert covered == [i for i, kind in enumerate(kinds) if kind]
    grids = {"image": inputs.get("image_grid_thw"), "video": inputs.get("video_grid_thw")}
    for kind, expected in grids.items():
        found = [one.grid for one in request.inputs if one.kind == kind]
        assert found == ([] if expected is None else [tuple(grid) for grid in expected.tolist()])
    positions, delta = reference.model.model.get_rope_index(
        inputs["input_ids"],
        inputs["mm_token_type_ids"],
        image_grid_thw=grids["image"],
        video_grid_thw=grids["video"],
    )
    given = np.frombuffer(request.positions, np.int32).reshape(3, -1)
    assert np.array_equal(given, positions[:, 0].numpy())
    assert request.position_delta == int(delta)
    for one in request.inputs:
        assert len(one.pixels) == np.prod(one.shape)
        assert one.tokens == sum(run.length for run in request.media if request.inputs[run.item] is one)


def test_text_stays_text(make: Any, reference: Transformers) -> None:
    [request] = requests_of(make(), [user(text("a"), text("b"))])
    assert request.token_ids == reference.processor.tokenizer(said("user", "ab") + OPEN)["input_ids"]
    assert (request.media, request.inputs, request.positions, request.position_delta) == ([], [], b"", 0)


def test_answers_of_one_prompt_share_its_pixels(make: Any) -> None:
    first, second = requests_of(make(), [user(image(A))], n=2)
    assert first.inputs[0].pixels is second.inputs[0].pixels
    assert first.media == second.media


def test_equal_media_are_one_input_however_they_came(make: Any) -> None:
    palette = io.BytesIO()
    two = np.repeat(np.repeat(np.uint8([[[0, 0, 0], [255, 0, 0]]]), 64, 0), 32, 1)
    Image.fromarray(two).convert("P", palette=Image.Palette.ADAPTIVE).save(palette, "GIF")
    gif = {"type": "image_url", "image_url": "data:image/gif;base64," + b64encode(palette.getvalue()).decode()}
    [request] = requests_of(make(), [user(image(two), image(A), gif, image(two, detail="high"))])
    assert [run.item for run in request.media] == [0, 1, 0, 0]
    assert len(request.inputs) == 2
    assert request.media[0].digest == request.media[2].digest != request.media[1].digest


def test_digests_tell_content_size_and_place_apart(make: Any) -> None:
    frontend = make()
    changed = A.copy()
    changed[-1, -1, -1] ^= 1
    parts = [image(A), image(changed), {**image(A), "max_pixels": 5000}]
    found = [requests_of(frontend, [user(part)])[0] for part in [*parts, image(A)]]
    digests = [one.inputs[0].digest for one in found]
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]
    assert [one.media[0].digest for one in found[::3]] == [found[0].media[0].digest] * 2
    [film] = requests_of(frontend, [user(video(FILM, fps=2.0))])
    assert len({run.digest for run in film.media}) == 2, "each patch in time has its own"


def test_detail_and_pixels_reach_the_processor(make: Any) -> None:
    frontend = make()
    large = picture(9, 180, 180)

    def tokens(part: dict[str, Any]) -> int:
        return requests_of(frontend, [user(part)])[0].inputs[0].tokens

    assert tokens(image(large)) == 36  # of 32 x 32 pixels: the nearest to 180 x 180, within the checkpoint's 36864
    assert tokens(image(picture(9, 512, 1000), detail="low")) == tokens(image(picture(9, 512, 1000)))
    assert tokens({**image(large), "max_pixels": 64 * 64}) == 4
    assert tokens({**image(picture(9, 64, 64)), "min_pixels": 128 * 128}) == 16
    assert tokens({**video(clip(9, 2, 128, 128), fps=1.0), "max_pixels": 64 * 64}) == 4, "of each frame"


def test_what_the_engine_could_not_encode_is_made_smaller(make: Any) -> None:
    [request] = requests_of(make(max_tokens=10), [user(image(picture(9, 180, 180)))])
    assert request.inputs[0].tokens == 9
    [request] = requests_of(make(max_tokens=10), [user(video(clip(9, 8, 64, 64), fps=2.0))])
    assert request.inputs[0].tokens <= 10
    with pytest.raises(RequestError, match=r"^messages\[0\].content\[0\]: it becomes \d+ tokens at least, and this"):
        requests_of(make(max_tokens=3), [user(video(clip(9, 8, 64, 64), fps=2.0))])


def test_offline_parts_are_taken_offline_alone(make: Any, tmp_path: Path) -> None:
    Image.fromarray(A).save(tmp_path / "a.png")
    values = [A, Image.fromarray(A), tmp_path / "a.png", str(tmp_path / "a.png"), (tmp_path / "a.png").read_bytes()]
    frontend = make()
    for value in values:
        [request] = requests_of(frontend, [user({"type": "image", "image": value})], offline=True)
        assert request.inputs == requests_of(frontend, [user(image(A))])[0].inputs
    [film] = requests_of(frontend, [user({"type": "video", "video": FILM.frames, "fps": 2.0})], offline=True)
    assert film.inputs == requests_of(frontend, [user(video(FILM, fps=2.0))])[0].inputs


def test_the_pixels_of_so_many_requests_are_held_at_a_time(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = make(max_concurrent_requests=2)
    loader = frontend.media._loader
    held: list[int] = [0]
    original = loader.load

    async def load(references: Any) -> Any:
        held.append(held[-1] + 1)
        try:
            await asyncio.sleep(0.01)
            return await original(references)
        finally:
            held.append(held[-1] - 1)

    monkeypatch.setattr(loader, "load", load)

    async def run() -> None:
        await asyncio.gather(*(frontend.place(frontend.read_chat([user(image(A))])) for _ in range(7)))

    asyncio.run(run())
    assert max(held) == 2
    assert held[-1] == 0


GOOD = image(picture(5, 64, 64))
LONG = np.zeros((1, 300, 3), np.uint8)

WRONG: list[tuple[list[Any], str, str]] = [
    (["x"], "[0]", "must be an object with a type"),
    ([{"type": 7}], "[0]", "must be an object with a type"),
    ([{"type": "audio"}], "[0].type", "there is no part of type 'audio', but text, image_url"),
    ([{"type": "input_audio", "input_audio": {}}], "[0].type", "there is no part of type"),
    ([{"type": "text", "text": 1}], "[0].text", "must be a string"),
    ([{"type": "text", "text": "x", "bold": True}], "[0].bold", "unknown field of a text part"),
    ([{"type": "image_url"}], "[0].image_url", "must be given"),
    ([{"type": "image_url", "image_url": 3}], "[0].image_url", "must be an object with a url"),
    ([{"type": "image_url", "image_url": {"url": None}}], "[0].image_url.url", "must be a string"),
    ([{"type": "image_url", "image_url": {"url": "ftp://x/y"}}], "[0].image_url.url", "must begin with"),
    ([GOOD, image(A, detail="best")], "[1].image_url.detail", "must be auto, low or high"),
    ([{**GOOD, "max_pixels": 0}], "[0].max_pixels", "must be an integer from 1"),
    ([{**GOOD, "min_pixels": 9, "max_pixels": 8}], "[0].min_pixels", "more than max_pixels"),
    ([{**GOOD, "max_pixels": 10**8}], "[0]", "max_pixels is 100000000, but this server takes at most"),
    ([{**GOOD, "size": 3}], "[0].size", "is unknown"),
    ([{"type": "image", "image": "a.png"}], "[0].type", "is for Python callers"),
    ([{"type": "image_url", "image_url": "data:image/png;base64,AAAA"}], "[0]", "the file is of no known format"),
    ([{"type": "image_url", "image_url": "data:image/png;base64,@"}], "[0]", "not valid base64"),
    ([{"type": "image_url", "image_url": "data:text/html,x"}], "[0]", "holds text/html"),
    ([{"type": "image_url", "image_url": "https://a.example/x.png"}], "[0]", "this server fetches no URLs"),
    ([{"type": "image_url", "image_url": "/etc/passwd"}], "[0]", "media.allowed_local_folders"),
    ([GOOD, GOOD, image(LONG)], "[2]", "it is 300 x 1 pixels; one side may be 200 times the other"),
    ([{"type": "video", "video": []}], "[0].video", "at least one frame"),
    (
        [{"type": "video", "video": [png_url(A), "data:image/png;base64,AAAA"]}],
        "[0]",
        "frame 1: the file is of no",
    ),
    ([{"type": "video", "video": [png_url(A), png_url(B)]}], "[0]", "frame"),
    (
        [{"type": "video_url", "video_url": {"url": png_url(A), "fps": -1}}],
        "[0].video_url.fps",
        "must be a number from",
    ),
    ([GOOD] * 65, "[64]", "the request holds 65 pictures and videos"),
]


@pytest.mark.parametrize(("parts", "field", "sentence"), WRONG)
def test_a_wrong_part_is_refused_by_its_place(make: Any, parts: list[Any], field: str, sentence: str) -> None:
    messages = [{"role": "system", "content": "x"}, user(*parts)]
    with pytest.raises(RequestError) as caught:
        requests_of(make(), messages)
    assert caught.value.field == "messages[1].content" + field
    assert str(caught.value).startswith("messages[1].content[") or "the request holds" in str(caught.value)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_placeholders_that_a_client_writes_are_refused(make: Any, reference: Transformers) -> None:
    frontend = make()
    with pytest.raises(RequestError, match=r"placeholders of 2 images and 0 videos, but there are 1 images"):
        requests_of(frontend, [user(GOOD, text(IMAGE))])
    with pytest.raises(RequestError, match=r"placeholders of 1 images and 0 videos, but there are 0 images"):
        requests_of(frontend, [user(text(IMAGE))])
    with pytest.raises(RequestError, match=r"placeholders of 1 images"):
        frontend.prepare(reference.processor.tokenizer(IMAGE)["input_ids"], SamplingParams())


@pytest.mark.parametrize("kind", ["image_url", "image", "video_url", "video"])
def test_a_model_of_text_alone_refuses_media_by_name(make: Any, kind: str) -> None:
    with pytest.raises(RequestError, match=rf"content\[1\]: {kind} is not supported by this model, which takes text"):
        requests_of(make(media=False), [user(text("x"), {"type": kind, kind: "x"})])


def test_a_prompt_that_becomes_too_long_is_refused_with_the_numbers(make: Any, client: Any) -> None:
    frontend = make()
    client.info.max_context = client.info.max_request_tokens = 30
    with pytest.raises(RequestError, match=r"the prompt has \d+ tokens, but must fit"):
        requests_of(frontend, [user(image(picture(1, 180, 180)))])


def test_a_cancelled_request_lets_go_of_its_place(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = make(max_concurrent_requests=1)
    loader = frontend.media._loader
    original = loader.load

    async def forever(references: Any) -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        prompt = frontend.read_chat([user(image(A))])
        monkeypatch.setattr(loader, "load", forever)
        waiting = asyncio.ensure_future(frontend.place(prompt))
        await asyncio.sleep(0.01)
        waiting.cancel()
        monkeypatch.setattr(loader, "load", original)
        placed = await asyncio.wait_for(frontend.place(prompt), 20)
        assert len(placed.inputs) == 1

    asyncio.run(run())
