"""The ``pymllm`` command.

Each subcommand is a module ``pymllm.cli.<name>`` with two functions, ``add_arguments(parser)`` and
``execute(args) -> int`` (the exit status). Only the module of the invoked command is imported, so its
one line of help stands here.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from pymllm import __version__
from pymllm.errors import PymllmError
from pymllm.spelling import did_you_mean

COMMANDS = {
    "run": "serve a model, or answer one prompt or a file of prompts",
    "chat": "chat in the terminal, with a configuration or a running server",
    "bench": "measure the model, throughput, latency or a running server, and draw the results",
    "eval": "ask a model the questions of its plugin, and count the right answers",
    "quantize": "make a quantized checkpoint of a model, and say what it costs",
    "warmup": "fetch and build ahead of time what a start needs, and say what was built",
    "plugins": "list the installed plugins",
    "config": "print a composed configuration",
    "doctor": "say what this machine has and which plugins can run here",
}
"""Subcommand -> its summary."""

FAILED, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
"""Exit statuses: an error that the user can fix; Ctrl-C; whoever read our output went away."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's) and return the exit status.

    An error that the user can fix is one line on standard error and status 2. Raises SystemExit for
    --help, --version and wrong usage, as argparse does.
    """
    try:
        status = _dispatch(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        return status
    except PymllmError as error:
        print(f"pymllm: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        _interrupted(own=argv is None)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more at exit, which would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _interrupted(*, own: bool) -> None:
    """own: the command line is the process's own, which ends now."""
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the terminal shows ^C in the line where the cursor was
    if own and threading.active_count() > 1:
        # A thread that still builds an engine would be torn out of C++ code by the interpreter's end, which
        # aborts the process with a message of its own.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)


def _dispatch(argv: list[str]) -> int:
    parser = _top()
    if not argv:
        parser.print_help()
        return FAILED
    args = parser.parse_args(argv[:1])  # --help and --version end here
    if args.command not in COMMANDS:
        parser.error(_unknown(args.command))
    module = import_module(f"pymllm.cli.{args.command}")
    command = argparse.ArgumentParser(
        prog=f"pymllm {args.command}", description=COMMANDS[args.command], allow_abbrev=False
    )
    module.add_arguments(command)
    status: int = module.execute(_parse(command, argv[1:]))
    return status


def _top() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="pymllm",
        usage="pymllm COMMAND ...",
        description="Plugin-based serving of large language and vision-language models.",
        epilog=f"commands:\n{listed}\n\n'pymllm COMMAND --help' explains a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pymllm {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Like parse_args, but ``key=value`` may also stand after options (see pymllm.cli.common)."""
    args, extra = parser.parse_known_args(argv)
    if extra and (not hasattr(args, "settings") or any(word.startswith("-") for word in extra)):
        parser.error(f"unrecognized arguments: {' '.join(extra)}{_option_hint(parser, args, extra)}")
    if extra:
        args.settings = [*args.settings, *extra]
    return args


def _option_hint(parser: argparse.ArgumentParser, args: argparse.Namespace, extra: Sequence[str]) -> str:
    """What the first unknown option was perhaps meant to be, also one of the subcommand that was given."""
    known = list(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            known += action.choices[getattr(args, action.dest)]._option_string_actions
    word = next((word.partition("=")[0] for word in extra if word.startswith("-")), "")
    hint = did_you_mean(word, known)
    return f".{hint}" if hint else ""


def _unknown(command: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(command, COMMANDS, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"commands: {', '.join(COMMANDS)}"
    return f"unknown command '{command}'; {hint}"
