"""Requests of several parts, the limits on all of them together, and the loader for callers without a loop."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from media_files import bmp, noise, rgb_png, saved
from media_site import Internet, Names, WebSite, silent
from pymllm.config import MediaConfig
from pymllm.errors import ConfigError, RequestError
from pymllm.media import Media, Picture, Video, offline_image, offline_video, parse_part
from pymllm.media.blocking import BlockingLoader
from pymllm.media.loader import MediaLoader
from pymllm.media.web import Web

Load = Callable[..., list[Media]]

NO_WEB = MediaConfig(allow_http=False)


def test_results_are_in_the_order_of_the_parts(load: Load) -> None:
    sizes = [(400, 300), (1, 1), (20, 30), (300, 200)]  # the first takes longest
    pictures = [noise(height, width) for height, width in sizes]
    references = [offline_image(rgb_png(picture), f"part {i}") for i, picture in enumerate(pictures)]
    references.insert(2, offline_video([pictures[1]] * 3, "part"))
    loaded = load(*references)
    assert [type(media) for media in loaded] == [Picture, Picture, Video, Picture, Picture]
    assert loaded[:2] + loaded[3:] == [Picture.of(picture) for picture in pictures]
    assert load() == []


def test_the_part_that_failed_is_named(load: Load) -> None:
    good, bad = rgb_png(noise(2, 2)), b"broken"
    references = [offline_image(data, f"messages[0].content[{i}]") for i, data in enumerate((good, good, bad, good))]
    with pytest.raises(RequestError) as refused:
        load(*references)
    assert str(refused.value).startswith("messages[0].content[2]: the file is of no known format")
    assert refused.value.field == "messages[0].content[2]"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_items_per_request": 2}, "the request holds 3 pictures and videos; at most 2 are taken"),
        ({"max_request_pixels": 599}, "together more than 599 pixels (media.max_request_pixels)"),
        ({"max_request_bytes": 1900}, "together larger than 1900 bytes (media.max_request_bytes)"),
        ({"max_bytes": 500}, "larger than 500 bytes (media.max_bytes)"),
    ],
)
def test_limits_of_a_request(load: Load, settings: dict[str, int], sentence: str, tmp_path: Path) -> None:
    data = bmp(noise(10, 20))
    (tmp_path / "a.bmp").write_bytes(data)
    references = [offline_image(tmp_path / "a.bmp", f"part {i}") for i in range(3)]
    exact = {"max_items_per_request": 3, "max_request_pixels": 600, "max_request_bytes": 3 * len(data)}
    assert len(load(*references, max_bytes=len(data), **exact)) == 3
    with pytest.raises(RequestError) as refused:
        load(*references, **settings)
    assert sentence in str(refused.value)
    assert refused.value.field.startswith("part ")


def test_bytes_given_offline_are_limited_too(load: Load) -> None:
    with pytest.raises(RequestError, match=r"larger than 500 bytes \(media.max_bytes\)"):
        load(offline_image(bmp(noise(10, 20)), "x"), max_bytes=500)


def test_decoding_leaves_the_event_loop_free() -> None:
    data = saved(Image.fromarray(noise(2000, 2000)), "PNG")

    async def run() -> int:
        loader = MediaLoader(MediaConfig(allow_http=False, decode_threads=1))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1
                assert sum(thread.name.startswith("pymllm-media") for thread in threading.enumerate()) <= 1

        counting = asyncio.ensure_future(count())
        await loader.load([offline_image(data, "x") for _ in range(4)])
        assert not counting.done()
        counting.cancel()
        loader.close()
        return turns

    assert asyncio.run(run()) > 10


def test_nothing_is_kept() -> None:
    loader = BlockingLoader(NO_WEB)
    [picture] = loader.load([offline_image(rgb_png(noise(20, 20)), "x")])
    assert isinstance(picture, Picture)
    pixels = weakref.ref(picture.pixels)
    del picture
    gc.collect()
    assert pixels() is None
    loader.close()


def test_callers_without_and_with_a_loop() -> None:
    """Any thread may call, also one that runs a loop, as in a notebook."""
    loader = BlockingLoader(NO_WEB)
    reference = offline_image(rgb_png(noise(20, 20)), "x")
    expected = [Picture.of(noise(20, 20))]
    assert loader.load([reference]) == expected

    async def in_a_notebook() -> list[Media]:
        return loader.load([reference])

    assert asyncio.run(in_a_notebook()) == expected
    results: list[list[Media]] = []
    threads = [threading.Thread(target=lambda: results.append(loader.load([reference]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [expected] * 8
    with pytest.raises(RequestError, match=r"^x: "):
        loader.load([offline_image(b"", "x")])
    loader.close()
    loader.close()


def test_closing_ends_what_is_loading(site: WebSite) -> None:
    site.answers["/slow"] = silent
    config = MediaConfig(timeout_seconds=60)
    web = Web(config, resolve=Names({"a.example": ["1.1.1.1"]}), network=Internet({"1.1.1.1": site.port}))
    loader = BlockingLoader(config, web=web)
    ended: list[BaseException] = []

    def call() -> None:
        try:
            loader.load([parse_part({"type": "image_url", "image_url": "http://a.example/slow"}, "x")])
        except CancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not site.requests:
        assert thread.is_alive()
    loader.close()
    thread.join(20)
    assert len(ended) == 1
    assert site.closed_by_client.wait(20)


def test_a_resolver_that_hangs_is_given_up(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: going_on.wait(20) and [])
    reference = parse_part({"type": "image_url", "image_url": "http://a.example/"}, "x")
    with pytest.raises(RequestError, match=r"not fetched within 0.2 seconds \(media.timeout_seconds\)"):
        load(reference, allow_http=True, timeout_seconds=0.2)
    going_on.set()


def test_wrong_folders_stop_the_start() -> None:
    with pytest.raises(ConfigError, match=r"media\.allowed_local_folders"):
        MediaLoader(MediaConfig(allowed_local_folders=["/no/such/folder"]))


def test_without_pillow_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from pymllm.errors import PluginError\n"
        "import pymllm.media\n"
        "try:\n    import pymllm.media.loader\n"
        "except PluginError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "pictures and videos need Pillow: pip install 'pymllm[vision]'\n"


def test_the_package_itself_is_light() -> None:
    """Parts are parsed without Pillow, PyAV or an HTTP client."""
    program = "import sys, pymllm.media; print({'PIL', 'av', 'httpx', 'httpcore', 'torch'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


def test_pictures_are_compared_by_content() -> None:
    pixels = noise(2, 3)
    picture = Picture.of(pixels.copy())
    assert picture == Picture.of(pixels.copy())
    assert len({picture, Picture.of(pixels.copy()), Picture.of(255 - pixels)}) == 2
    video = Video.of(np.stack([pixels] * 2), [0, 0.5], 1.0)
    assert (video.fps, video.width, video.height) == (2.0, 3, 2)
    assert video != Video.of(np.stack([pixels] * 2), [0, 0.25], 1.0)
