"""``pymllm --help`` answers at once: it imports neither a subcommand nor anything that is slow to import."""

from __future__ import annotations

import time

import pytest

from pymllm import __version__
from pymllm.cli import COMMANDS
from sites import run_pymllm, run_python

HEAVY = ("torch", "triton", "transformers", "fastapi", "uvicorn", "numpy", "omegaconf", "pluggy", "rich", "msgspec")


def test_in_three_tenths_of_a_second() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        assert run_pymllm("--help").returncode == 0
        return time.perf_counter() - start

    assert any(seconds() < 0.3 for _ in range(20))  # other processes may use the cores meanwhile


def test_it_imports_nothing_slow() -> None:
    code = (
        "import sys, pymllm.cli\n"
        "try: pymllm.cli.main(['--help'])\n"
        f"except SystemExit: print([m for m in sys.modules if m.startswith({HEAVY!r} + ('pymllm.cli.',))])"
    )
    assert run_python(code).stdout.splitlines()[-1] == "[]"


def test_it_lists_every_command() -> None:
    done = run_pymllm("--help")
    assert done.stderr == ""
    for name, summary in COMMANDS.items():
        assert any(line.split() == [name, *summary.split()] for line in done.stdout.splitlines())


def test_version() -> None:
    assert run_pymllm("--version").stdout == f"pymllm {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_without_torch(command: str) -> None:
    code = (
        "import sys, pymllm.cli\n"
        f"try: pymllm.cli.main([{command!r}, '--help'])\n"
        "except SystemExit as end: print(end.code, [m for m in ('torch', 'fastapi') if m in sys.modules])"
    )
    done = run_python(code)
    assert done.stdout.startswith(f"usage: pymllm {command}")
    assert done.stdout.splitlines()[-1] == "0 []"
