"""What the user can fix is status 2 without a traceback; a reader that goes away is not an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sites import run_pymllm, run_python


def test_an_error_is_one_line() -> None:
    done = run_pymllm("config", "no-such.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pymllm: no-such.yaml: there is no such file\n"


@pytest.mark.parametrize(
    "words, expected",
    [
        (["confg"], "unknown command 'confg'; did you mean 'config'?"),
        (["zzzzz"], "unknown command 'zzzzz'; commands: run, chat, bench, "),
        (["config"], "required"),
        (["plugins", "--chek"], "unrecognized arguments: --chek. Did you mean '--check'?"),
        (["run", "q.yaml", "--promt", "hi"], "unrecognized arguments: --promt hi. Did you mean '--prompt'?"),
        (["run", "--max-token=3"], "unrecognized arguments: --max-token=3. Did you mean '--max-tokens'?"),
        (["bench", "serve", "http://h", "--num-request", "3"], "Did you mean '--num-requests'?"),
        (["plugins", "--zzz"], "unrecognized arguments: --zzz\n"),
        (["plugins", "word"], "unrecognized arguments: word"),
        (["--no-such"], "--no-such"),
    ],
)
def test_wrong_usage(words: list[str], expected: str) -> None:
    done = run_pymllm(*words)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_no_command_prints_the_help() -> None:
    done = run_pymllm()
    assert done.returncode == 2
    assert "commands:" in done.stdout


def test_a_reader_that_goes_away_is_no_complaint() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pymllm", "config", "model.path=x"], stdout=write, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    # An interpreter that runs the real command, on a FIFO as its file: it waits there until it is interrupted.
    fifo = tmp_path / "slow.yaml"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "pymllm", "config", str(fifo)], stderr=subprocess.PIPE, start_new_session=True
    )
    with fifo.open("w"):  # opens once the command reads: it is past its imports
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, b"")


def test_overrides_may_stand_after_options() -> None:
    code = (
        "import argparse; from pymllm.cli import _parse\n"
        "from pymllm.cli.common import add_config_arguments, config_source\n"
        "parser = argparse.ArgumentParser(); add_config_arguments(parser); parser.add_argument('--prompt')\n"
        "print(config_source(_parse(parser, ['q.yaml', 'a=1', '--prompt', 'x', 'b.c=2']).settings))\n"
        "print(config_source(_parse(parser, ['--prompt', 'x', 'a.b=dir/file.yaml']).settings))"
    )
    assert run_python(code).stdout == "('q.yaml', ['a=1', 'b.c=2'])\n(None, ['a.b=dir/file.yaml'])\n"
