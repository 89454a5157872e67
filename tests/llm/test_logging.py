"""Log lines go to standard error in one short form; libraries stay quiet."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from pymllm.config import LogLevel
from pymllm.log import setup_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("pymllm")
    handlers, level = list(root.handlers), own.level
    yield
    root.handlers[:] = handlers
    own.setLevel(level)


def test_the_form_of_a_line_and_the_level(capsys):
    setup_logging(LogLevel.info)
    setup_logging("info")
    logging.getLogger("pymllm.engine.scheduler").info("ready in %d s", 3)
    logging.getLogger("pymllm").debug("not shown")
    logging.getLogger("httpx").info("not shown")
    logging.getLogger("somebody.else").warning("careful")
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert re.fullmatch(r"\d\d:\d\d:\d\d pymllm info: ready in 3 s", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d somebody warning: careful", second)


def test_warnings_only(capsys):
    setup_logging("warning")
    logging.getLogger("pymllm").info("not shown")
    assert capsys.readouterr().err == ""
