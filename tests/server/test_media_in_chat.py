"""Pictures and videos through the real server: right answers, streams, and refusals that name the part."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from media_files import saved
from media_site import WebSite, answer, silent
from pymllm.testing import make_tiny_vision_checkpoint
from pymllm.testing.media_prompt import clip, picture
from qwen3_vl import Transformers
from seen import IMAGE, OPEN, VIDEO, image, png_url, said, text, user, video

TOKENS = 10
GREEDY = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}

A, B = picture(1, 70, 101), picture(2, 120, 40)
FILM = clip(4, 4, 50, 66, fps=2.0)


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision_checkpoint(tmp_path_factory.mktemp("vision") / "tiny")


@pytest.fixture(scope="module")
def reference(vision: Path) -> Transformers:
    found = Transformers(vision)
    found.model.generation_config.eos_token_id = None
    return found


@pytest.fixture(scope="module")
def site() -> Iterator[WebSite]:
    site = WebSite().start()
    yield site
    site.close()


@pytest.fixture(scope="module")
def seeing(start_server: Any, vision: Path, site: WebSite) -> Iterator[Any]:
    settings = {
        "model.path": str(vision),
        "engine.max_total_tokens": 8192,
        "media.allow_private_addresses": True,
        "media.allowed_ports": [site.port],
        "media.timeout_seconds": 30,
        "media.max_bytes": 10**6,
        "media.max_tokens": 128,
        "media.max_pixels": 10**6,
    }
    with start_server(settings) as running:
        yield running


@pytest.fixture
def http(seeing: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=seeing.url, timeout=60) as client:
        yield client


def expected(reference: Transformers, prompt: str, *media: Any) -> str:
    tokens = reference.answer(prompt, media, TOKENS)
    return reference.processor.tokenizer.decode(tokens, skip_special_tokens=True)


def asked(http: httpx.Client, *parts: Any, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"messages": [user(*parts)], **GREEDY, **fields})


def said_by(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


def test_the_openai_sdk_sends_pictures(seeing: Any, reference: Transformers) -> None:
    client = openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none")
    messages: Any = [user(text("one"), image(A), text("two"), image(B))]
    options: Any = {"model": "default", "temperature": 0, "max_tokens": TOKENS, "extra_body": {"ignore_eos": True}}
    words = expected(reference, said("user", f"one{IMAGE}two{IMAGE}") + OPEN, A, B)
    whole = client.chat.completions.create(messages=messages, **options)
    assert whole.choices[0].message.content == words
    prompt = len(reference.inputs(said("user", f"one{IMAGE}two{IMAGE}") + OPEN, [A, B])["input_ids"][0])
    assert whole.usage.prompt_tokens == prompt
    stream = client.chat.completions.create(
        messages=messages, stream=True, stream_options={"include_usage": True}, **options
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == words
    assert chunks[-1].usage.prompt_tokens == prompt
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_every_kind_of_part(seeing: Any, http: httpx.Client, site: WebSite, reference: Transformers) -> None:
    site.answers["/a.png"] = answer(saved(Image.fromarray(A), "PNG"), headers={"Content-Type": "image/png"})
    words = expected(reference, said("user", f"{IMAGE}x") + OPEN, A)
    web = f"http://127.0.0.1:{site.port}/a.png"
    for part in (image(A), {"type": "image_url", "image_url": png_url(A)}, {"type": "image_url", "image_url": web}):
        assert said_by(asked(http, part, text("x"))) == words
    film = expected(reference, said("user", f"{VIDEO}x") + OPEN, FILM)
    assert said_by(asked(http, video(FILM, fps=2.0), text("x"))) == film


def test_sglangs_image_data(http: httpx.Client, reference: Transformers) -> None:
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    one, two = f"a {IMAGE} b", f"{IMAGE}{IMAGE}"
    expect = [expected(reference, one, A), expected(reference, two, A, B), expected(reference, "c")]
    for data in (png_url(A), [png_url(A)]):
        found = http.post("/generate", json={"text": one, "image_data": data, "sampling_params": sampling})
        assert found.json()["text"] == expect[0]
    batch = {"text": [one, two, "c"], "image_data": [png_url(A), [png_url(A), png_url(B)], None]}
    found = http.post("/generate", json={**batch, "sampling_params": sampling})
    assert [each["text"] for each in found.json()] == expect
    for wrong, field in (
        ({"text": one, "image_data": []}, "prompt"),
        ({"text": one, "image_data": 7}, "image_data"),
        ({"text": [one], "image_data": png_url(A)}, "image_data"),
        ({"text": [one], "image_data": [png_url(A), png_url(A)]}, "image_data"),
        ({"text": [one], "image_data": [["x"]]}, "image_data[0][0]"),
        ({"text": one, "video_data": "x"}, "video_data"),
    ):
        response = http.post("/generate", json={**wrong, "sampling_params": sampling})
        assert (response.status_code, response.json()["error"]["param"]) == (400, field), response.text


def test_tokenize_counts_what_a_chat_would(http: httpx.Client) -> None:
    messages = [user(image(A), text("x"))]
    counted = http.post("/tokenize", json={"messages": messages}).json()["count"]
    usage = http.post("/v1/chat/completions", json={"messages": messages, **GREEDY}).json()["usage"]
    assert counted == usage["prompt_tokens"]


def test_facts_say_what_is_taken(http: httpx.Client, server: Any) -> None:
    assert http.get("/info").json()["takes"] == ["text", "image", "video"]
    assert httpx.get(f"{server.url}/info").json()["takes"] == ["text"]
    refused = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": [user(image(A))]})
    assert refused.json()["error"]["param"] == "messages[0].content[0].type"


def test_a_client_that_leaves_ends_the_fetch(seeing: Any, site: WebSite) -> None:
    site.closed_by_client.clear()
    site.answers["/slow.png"] = silent
    part = {"type": "image_url", "image_url": f"http://127.0.0.1:{site.port}/slow.png"}
    started = time.monotonic()
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=seeing.url, timeout=0.5) as http:
        asked(http, part)
    assert site.closed_by_client.wait(10)
    seeing.wait_idle()
    assert time.monotonic() - started < 20, "before the fetch would have timed out"


def resident() -> int:
    """Bytes of this process, in which the server runs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def hostile(site: WebSite, folder: Path) -> dict[str, dict[str, Any]]:
    """Parts that must be refused."""
    good = saved(Image.fromarray(picture(7, 400, 400)), "PNG")
    bomb = saved(Image.new("1", (30000, 30000)), "PNG")
    site.answers |= {
        "/404": answer(b"", status="404 Not Found"),
        "/html": answer(b"<html>no</html>", headers={"Content-Type": "text/html"}),
        "/cut": answer(good[: len(good) // 2], length=len(good)),
        "/empty": answer(b""),
        "/huge": answer(b"x", length=10**12),
        "/loop": answer(b"", status="302 Found", headers={"Location": "/loop"}),
        "/metadata": answer(b"", status="302 Found", headers={"Location": "http://169.254.169.254/latest"}),
        "/file": answer(b"", status="302 Found", headers={"Location": "file:///etc/passwd"}),
    }

    def url(where: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": where}}

    def data(content: bytes, kind: str = "image/png") -> dict[str, Any]:
        return url(f"data:{kind};base64,{b64encode(content).decode()}")

    secret = folder / "secret.png"
    secret.write_bytes(good)
    web = {name: url(f"http://127.0.0.1:{site.port}{name}") for name in site.answers if name.count(".") == 0}
    return web | {
        "another port": url("http://127.0.0.1:1/x"),
        "no such host": url(f"http://no-such-host.invalid:{site.port}/x"),
        "link-local": url("http://169.254.169.254/latest/meta-data"),
        "ftp": url("ftp://127.0.0.1/x"),
        "javascript": url("javascript:alert(1)"),
        "a path": url(str(secret)),
        "a file URL": url(secret.as_uri()),
        "a bomb": data(bomb),
        "half a file": data(good[:-200]),
        "another type": data(good, "text/html"),
        "bad base64": url("data:image/png;base64,%%%"),
        "an empty data URL": url("data:image/png;base64,"),
        "svg": data(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        "noise": data(bytes(range(256)) * 100),
        "too large": data(b"\0" * (10**6 + 1)),
        "a sliver": image(picture(1, 1, 999)),
        "too many frames to fit": {**video(FILM), "fps": 10**9},
        "pixels beyond the bound": {**image(A), "max_pixels": 10**9},
        "no pixels": {**image(A), "max_pixels": 0},
        "least above most": {**image(A), "min_pixels": 10**5, "max_pixels": 10**4},
        "half a JPEG": data(saved(Image.fromarray(picture(8, 300, 300)), "JPEG")[:2000], "image/jpeg"),
        "half a GIF": data(saved(Image.fromarray(picture(8, 300, 300)), "GIF")[:2000], "image/gif"),
        "half a WebP": data(saved(Image.fromarray(picture(8, 300, 300)), "WEBP")[:900], "image/webp"),
        "half a BMP": data(saved(Image.fromarray(picture(8, 300, 300)), "BMP")[:5000], "image/bmp"),
        "a PNG's header": data(good[:33]),
        "a wrong checksum": data(good[:40] + bytes([good[40] ^ 255]) + good[41:]),
        "TIFF": data(saved(Image.fromarray(picture(8, 60, 60)), "TIFF"), "image/tiff"),
        "ICO": data(saved(Image.fromarray(picture(8, 60, 60)), "ICO"), "image/png"),
        "PDF": data(b"%PDF-1.7\n1 0 obj\n<<>>\nendobj", "image/png"),
        "a GIF without a frame": data(b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "image/gif"),
        "no data": url("data:,"),
        "no host": url("http:///picture.png"),
        "no URL": url(""),
        "a number": {"type": "image_url", "image_url": {"url": 7}},
        "no such detail": {"type": "image_url", "image_url": {"url": "data:image/png;base64,", "detail": "best"}},
        "no film": {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{b64encode(good).decode()}"}},
        "no frames": {"type": "video_url", "video_url": {"url": []}},
        "fps below 0": {**video(FILM), "fps": -1},
        "0 frames": {**video(FILM), "num_frames": 0},
    }


def test_hostile_parts_are_refused_and_leave_nothing(
    seeing: Any, http: httpx.Client, site: WebSite, reference: Transformers, tmp_path: Path
) -> None:
    words = expected(reference, said("user", f"{IMAGE}x") + OPEN, A)
    parts = hostile(site, tmp_path)
    assert len(parts) >= 40
    before = 0
    for turn in range(2):
        for name, part in parts.items():
            response = asked(http, text("look"), image(B), part)
            assert response.status_code == 400, (name, response.text)
            error = response.json()["error"]
            assert error["param"].startswith("messages[0].content[2]"), (name, error)
            assert error["message"].startswith("messages[0].content[2]"), (name, error)
            assert "root:" not in error["message"]
            assert str(site.port) not in error["message"], (name, error)
        if turn == 0:
            before = resident()
    assert said_by(asked(http, image(A), text("x"))) == words
    seeing.wait_idle()
    assert seeing.state.frontend.client.stats().pages_used == 0
    assert resident() - before < 64 * 2**20
