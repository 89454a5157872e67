"""Loaders without and with a web around them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from media_site import WebSite
from pymllm.config import MediaConfig
from pymllm.media import Media, Reference
from pymllm.media.loader import MediaLoader

SECONDS = 20
"""Until a test is given up: more than any limit that it sets."""


@pytest.fixture
def site() -> Iterator[WebSite]:
    """A web server on localhost that knows no path yet."""
    site = WebSite().start()
    yield site
    site.close()


@pytest.fixture
def load() -> Callable[..., list[Media]]:
    """``load(references, web=..., **media)``: by a new loader with these settings; without ``web`` it fetches nothing,
    unless told to."""

    def load(*references: Reference, web: Callable[[MediaConfig], Any] | None = None, **media: Any) -> list[Media]:
        config = MediaConfig(**{"allow_http": web is not None, **media})

        async def run() -> list[Media]:
            loader = MediaLoader(config, web=web(config) if web else None)
            try:
                return await asyncio.wait_for(loader.load(references), SECONDS)
            finally:
                loader.close()

        return asyncio.run(run())

    return load


@pytest.fixture(scope="session")
def certificate() -> Path:
    """Key and certificate of pictures.example."""
    return Path(__file__).parent / "pictures.example.pem"
