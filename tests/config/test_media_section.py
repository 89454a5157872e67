"""``media``: lists of texts and numbers, typed and checked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from pymllm.compose import compose, to_yaml
from pymllm.config import MediaConfig
from pymllm.errors import ConfigError


def test_defaults_reach_the_public_web_and_nothing_else() -> None:
    media = compose(None, ["model.path=x"]).media
    assert media == MediaConfig()
    assert (media.allowed_local_folders, media.allow_private_addresses) == ([], False)
    assert (media.allowed_ports, media.allowed_hosts) == ([80, 443], None)


def test_lists_are_plain_lists() -> None:
    words = [
        "media.allowed_ports=[8080]",
        "media.allowed_hosts=['*.example.com']",
        "media.allowed_local_folders=[/srv]",
    ]
    media = compose(None, ["model.path=x", *words]).media
    assert asdict(media) == asdict(
        MediaConfig(allowed_ports=[8080], allowed_hosts=["*.example.com"], allowed_local_folders=["/srv"])
    )
    assert all(type(value) is list for value in (media.allowed_ports, media.allowed_hosts))


def test_it_composes_again_from_what_is_printed(tmp_path: Path) -> None:
    config = compose(None, ["model.path=x", "media.allowed_hosts=[a.example]", "media.max_pixels=5"])
    path = tmp_path / "again.yaml"
    path.write_text(to_yaml(config))
    assert compose(path).media == config.media


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("media.allowed_ports=80", "media.allowed_ports: expected a list, got 80"),
        ("media.allowed_ports=[0]", "media.allowed_ports: must hold ports from 1 to 65535, not 0"),
        ("media.allowed_ports=[http]", "media.allowed_ports[0]: does not fit"),
        ("media.allowed_hosts=a.example", "media.allowed_hosts: expected a list or null"),
        ("media.allowed_hosts=['https://a.example']", "media.allowed_hosts: must hold host names"),
        ("media.allowed_local_folders=[pictures]", "media.allowed_local_folders: must hold absolute paths"),
        ("media.timeout_seconds=0", "media.timeout_seconds: must be a number above 0"),
        ("media.timeout_seconds=.inf", "media.timeout_seconds: must be a number above 0"),
        ("media.max_pixels=0", "media.max_pixels: must be at least 1"),
        ("media.decode_threads=0", "media.decode_threads: must be at least 1"),
        ("media.max_tokens=0", "media.max_tokens: must be at least 1"),
        ("media.cache_bytes=-1", "media.cache_bytes: must be at least 0"),
        ("media.max_concurrent_requests=0", "media.max_concurrent_requests: must be at least 1"),
    ],
)
def test_what_would_fail_later_is_refused_now(word: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(None, ["model.path=x", word])
    assert sentence in str(refused.value)
