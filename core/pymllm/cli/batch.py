"""``pymllm run --batch``: answers every line of a file, in order, as they become ready."""

from __future__ import annotations

import argparse
import os
import queue
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from pymllm.cli.batch_lines import LineReader, Task, error_line, name_of, parse_line
from pymllm.errors import ConfigError, EngineDeadError, RequestError

if TYPE_CHECKING:
    from pymllm.config import Config
    from pymllm.frontend.frontend import Generation
    from pymllm.frontend.generation import Delta
    from pymllm.llm import LLM

LOOKAHEAD = 4
"""Lines in work, as a multiple of the requests that can run at once: enough to keep the engine busy while
one long answer delays the output, and no more than fits into memory for a file of any size."""


def answer_file(config: Config, args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Answer ``args.batch`` into ``args.output``. options: sampling fields for lines that do not set them.

    Lines are written to "OUTPUT.part" as they are answered; it becomes OUTPUT when all are. Returns 1 if some
    could not be answered. Raises ConfigError before the model is loaded if a file cannot be used.
    """
    source, target = Path(args.batch), Path(args.output)
    lines = _check_files(source, target, args.force)
    from pymllm.llm import LLM
    from pymllm.server.state import served_name

    with LLM.from_config(config, progress=not args.quiet and sys.stderr.isatty()) as llm:
        part = target.with_name(target.name + ".part")
        with source.open("rb") as reader, part.open("wb") as writer:
            name = served_name(llm.frontend.model_name, config.server.model_name)
            batch = _Batch(llm, name, writer, options, lines, progress=not args.quiet)
            batch.run(reader)
        os.replace(part, target)
    if batch.failed:
        print(
            f"pymllm: {batch.failed} of {batch.written} lines could not be answered, the first is "
            f"line {batch.first_failure}; '{target}' holds the rest",
            file=sys.stderr,
        )
    return 1 if batch.failed else 0


def _check_files(source: Path, target: Path, force: bool) -> int:
    """Number of lines of the source. Raises ConfigError."""
    if target.exists() and not force:
        raise ConfigError(f"'{target}' exists; give --force to replace it, or another --output")
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise ConfigError(f"--output '{target}' must be a file in a folder that exists")
    try:
        with source.open("rb") as reader:
            return sum(1 for line in reader if line.strip())
    except OSError as error:
        raise ConfigError(f"--batch '{source}' cannot be read: {error.strerror}") from error


class _Entry:
    """A line in work. number: from 1. answer: the finished line, if there is one already."""

    def __init__(self, number: int, content: dict[str, Any]) -> None:
        self.number = number
        self.content = content
        self.task: Task | None = None
        self.generation: Generation | None = None
        self.answer: dict[str, Any] | None = None


class _Batch:
    """written, failed: lines so far. first_failure: its line number."""

    def __init__(
        self,
        llm: LLM,
        model_name: str,
        writer: IO[bytes],
        options: Mapping[str, Any],
        lines: int,
        *,
        progress: bool,
    ) -> None:
        from tqdm import tqdm

        from pymllm.server.token_text import TokenTexts

        self._frontend = llm.frontend
        self._reader = LineReader(llm, model_name, TokenTexts(llm.tokenizer), options)
        self._writer = writer
        self._events: queue.SimpleQueue[tuple[_Entry, Delta]] = queue.SimpleQueue()
        self._open: deque[_Entry] = deque()
        self._bar = tqdm(total=lines, unit="line", disable=not progress, dynamic_ncols=True)
        self.written = 0
        self.failed = 0
        self.first_failure = 0

    def run(self, lines: IO[bytes]) -> None:
        """Answer all lines. Raises EngineDeadError; what is open is aborted on any exception."""
        window = LOOKAHEAD * self._frontend.client.info.max_running_requests
        try:
            with self._bar:
                for entry in self._entries(lines):
                    self._open.append(entry)
                    self._write_finished()
                    while len(self._open) >= window:
                        self._wait()
                while self._open:
                    self._wait()
        except BaseException:
            for entry in self._open:
                if entry.generation is not None:
                    entry.generation.abort()
            raise

    def _entries(self, lines: IO[bytes]) -> Iterator[_Entry]:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield self._start(number, line)

    def _start(self, number: int, line: bytes) -> _Entry:
        entry = _Entry(number, {})
        try:
            entry.content = parse_line(line)
            entry.task, prepared = self._reader.read(entry.content)
            entry.generation = self._frontend.start_prepared(prepared, lambda delta: self._events.put((entry, delta)))
        except RequestError as error:
            self._fail(entry, str(error))
        return entry

    def _wait(self) -> None:
        """Take in one piece of news, and write what it completes."""
        if self._open[0].answer is None:
            entry, delta = self._events.get()
            assert entry.task is not None
            entry.task.add(delta)
            if delta.error is not None and not self._frontend.client.alive:
                raise EngineDeadError(delta.error)
            if entry.task.finished:
                self._finish(entry, entry.task)
        self._write_finished()

    def _finish(self, entry: _Entry, task: Task) -> None:
        if task.error is not None:
            self._fail(entry, task.error)
            return
        entry.answer = {**name_of(entry.content), **task.render(task)}

    def _fail(self, entry: _Entry, message: str) -> None:
        self.failed += 1
        self.first_failure = min(self.first_failure or entry.number, entry.number)
        entry.answer = error_line(entry.content, entry.number, message)

    def _write_finished(self) -> None:
        while self._open and self._open[0].answer is not None:
            self._writer.write(msgspec.json.encode(self._open.popleft().answer) + b"\n")
            self._writer.flush()
            self.written += 1
            self._bar.update()
