"""Overrides win over the file, later ones over earlier ones, and change plugins cleanly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm.compose import compose
from pymllm.config import Config
from pymllm.errors import ConfigError
from pymllm_cache_radix.plugin import Eviction

Composed = Callable[..., Config]


def test_the_last_one_wins(composed: Composed) -> None:
    config = composed("cache: {page_size: 4}", "cache.page_size=8", "cache.page_size=32")
    assert config.cache.page_size == 32


@pytest.mark.parametrize("override", ["cache.plugin=chunk", "cache=chunk", "cache={plugin: chunk}"])
@pytest.mark.parametrize(
    "file", ["cache: {plugin: radix, eviction: lfu, page_size: 8}", "cache: {eviction: lfu, page_size: 8}"]
)
def test_another_plugin_drops_the_options_of_the_files(composed: Composed, override: str, file: str) -> None:
    cache = composed(file, override).cache
    assert (cache.plugin, cache.page_size) == ("chunk", 8)
    assert not hasattr(cache, "eviction")


def test_the_same_plugin_keeps_the_options(composed: Composed) -> None:
    assert composed("cache: {eviction: lfu}", "cache.plugin=radix").cache.eviction is Eviction.lfu


def test_the_order_of_plugin_and_option_does_not_matter(composed: Composed) -> None:
    for overrides in (["cache.eviction=fifo", "cache=radix"], ["cache=radix", "cache.eviction=fifo"]):
        assert composed("cache: chunk", *overrides).cache.eviction is Eviction.fifo


def test_a_plugin_of_the_file_that_is_not_there_may_be_overridden(composed: Composed) -> None:
    assert composed("cache: {plugin: gone, strange: 1}", "cache=chunk").cache.plugin == "chunk"


@pytest.mark.parametrize("text", ["0123", "1.10", "1e5", "true", "a #b", "[x", "{a: b}", "a: b", "C:\\x", "a=b"])
def test_text_is_taken_as_typed(text: str) -> None:
    assert compose(None, [f"model.path={text}"]).model.path == text


def test_null_and_quotes_in_text(composed: Composed) -> None:
    assert composed("server: {api_key: old}", "server.api_key=null").server.api_key is None
    assert composed("", "server.api_key='null'").server.api_key == "null"


def test_a_mapping_from_dotted_keys() -> None:
    config = compose(
        {"model": {"path": "somewhere"}, "cache": {"eviction": "lfu"}},
        {
            "cache.plugin": "chunk",
            "engine": {"max_batch_tokens": 7},
            "engine.process": False,
            "model.path": Path("a/b"),
        },
    )
    assert (config.cache.plugin, config.engine.max_batch_tokens, config.engine.process) == ("chunk", 7, False)
    assert config.model.path == "a/b"


def test_a_mapping_may_hold_enums() -> None:
    config = compose(None, {"model.path": "x", "cache.eviction": Eviction.fifo})
    assert config.cache.eviction is Eviction.fifo


@pytest.mark.parametrize("override", ["page_size", "", "=3", "a b=3", ".x=1", "cache..x=1", "--port=3"])
def test_what_is_no_override_is_named(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(None, ["model.path=x", override])
    assert str(caught.value).startswith(f"override '{override}': ")
