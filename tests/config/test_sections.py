"""A section is written as a plugin's name or as keys; it holds the core's keys and the chosen plugin's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.compose import compose
from pymllm.config import CacheConfig, Config, DType, ModelConfig
from pymllm.plugin import CacheOptions
from pymllm_cache_radix.plugin import Eviction, RadixOptions

Composed = Callable[..., Config]


def test_nothing_but_a_path_is_needed() -> None:
    config = compose(None, ["model.path=somewhere"])
    assert config.model == ModelConfig(path="somewhere")
    assert (config.cache.plugin, config.cache.page_size, config.cache.eviction) == ("radix", 16, Eviction.lru)
    assert (config.quant.plugin, config.attention.plugin) == ("auto", "auto")
    assert (config.server.port, config.engine.process, config.log.level.name) == (8000, None, "info")


@pytest.mark.parametrize("text", ["cache: chunk", "cache: {plugin: chunk}", "cache:\n  plugin: chunk\n"])
def test_both_spellings_mean_the_same(composed: Composed, text: str) -> None:
    config = composed(text)
    assert (config.cache.plugin, config.cache.page_size) == ("chunk", 16)


def test_a_section_is_of_both_classes_and_typed(composed: Composed) -> None:
    cache = composed("cache: {plugin: radix, page_size: 32, eviction: priority}").cache
    assert isinstance(cache, CacheConfig)
    assert isinstance(cache, RadixOptions)
    assert (cache.page_size, cache.eviction) == (32, Eviction.priority)


def test_every_policy_has_a_page_size(composed: Composed) -> None:
    cache = composed("cache: {plugin: chunk, page_size: 8}").cache
    assert isinstance(cache, CacheOptions)
    assert cache.page_size == 8


def test_an_empty_section_is_the_default(composed: Composed) -> None:
    assert composed("cache:\nengine:\nserver: {}\n") == composed("")


def test_values_have_their_types(composed: Composed) -> None:
    config = composed(
        "engine: {process: false, memory_fraction: 1, max_batch_tokens: 1, seed: -1}\n"
        "server: {drain_seconds: 2, api_key: '0123'}\nlog: {level: debug}\n",
        "model.dtype=bfloat16",
    )
    engine = config.engine
    assert (engine.process, engine.max_batch_tokens, engine.seed) == (False, 1, -1)
    assert (engine.memory_fraction, type(engine.memory_fraction)) == (1.0, float)
    assert (config.server.drain_seconds, type(config.server.drain_seconds)) == (2.0, float)
    assert config.server.api_key == "0123"
    assert config.model.dtype is DType.bfloat16


def test_references(composed: Composed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMLLM_TEST_KEY", "secret")
    monkeypatch.setenv("PYMLLM_TEST_POLICY", "chunk")
    config = composed(
        "server: {api_key: '${oc.env:PYMLLM_TEST_KEY}', model_name: '${model.path}', port: '${oc.env:NO_SUCH,81}'}\n"
        "cache: {plugin: '${oc.env:PYMLLM_TEST_POLICY}'}\n"
    )
    assert (config.server.api_key, config.server.model_name, config.server.port) == ("secret", "somewhere", 81)
    assert config.cache.plugin == "chunk"
    assert not hasattr(config.cache, "eviction")
