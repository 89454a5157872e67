from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pymllm.compose import compose
from pymllm.config import Config
from pymllm.errors import PymllmError


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes quick.yaml into the current folder, which is a temporary one."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        Path("quick.yaml").write_text(text)
        return "quick.yaml"

    return write


@pytest.fixture
def composed(write: Callable[[str], str]) -> Callable[..., Config]:
    """Composes YAML text, a model.path added, with overrides."""

    def composed(text: str, *overrides: str) -> Config:
        return compose(write(f"model: {{path: somewhere}}\n{text}"), overrides)

    return composed


@pytest.fixture
def refused(write: Callable[[str], str]) -> Callable[..., str]:
    """Composes YAML text that must be refused in one line, and returns that line."""

    def refused(text: str, *overrides: str, error: type[PymllmError] = PymllmError) -> str:
        return refusal(write(text), overrides, error)

    def refusal(source: Any, overrides: Sequence[str], error: type[PymllmError]) -> str:
        with pytest.raises(error) as caught:
            compose(source, overrides)
        message = str(caught.value)
        assert "\n" not in message
        for jargon in ("full_key", "object_type", "OmegaConf", "DictConfig", "nterpolation"):
            assert jargon not in message
        return message

    return refused
