"""Log lines on standard error, for whoever runs pymllm as a program. As a library it only logs, quietly."""

from __future__ import annotations

import logging
import sys
import time

QUIET = ("httpx", "httpcore", "urllib3", "huggingface_hub", "filelock", "asyncio")


class _StderrHandler(logging.Handler):
    """Writes to what ``sys.stderr`` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class _Formatter(logging.Formatter):
    """12:00:01 pymllm info: message"""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock} {record.name.partition('.')[0]} {record.levelname.lower()}: {record.message}"


def setup_logging(level: str) -> None:
    """Show pymllm's log from ``level`` on (debug, info, warning or error) and others' warnings. Idempotent."""
    handler = _StderrHandler()
    handler.setFormatter(_Formatter())
    root = logging.getLogger()
    for previous in [old for old in root.handlers if isinstance(old, _StderrHandler)]:
        root.removeHandler(previous)
    root.addHandler(handler)
    logging.getLogger("pymllm").setLevel(str(getattr(level, "value", level)).upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
