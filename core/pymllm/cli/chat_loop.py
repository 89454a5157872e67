"""Reads messages and commands, shows answers, until the user leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from pymllm.cli.chat_media import KINDS, read_command
from pymllm.cli.chat_session import HELP, ChatSession
from pymllm.cli.chat_terminal import Terminal
from pymllm.errors import EngineDeadError, PymllmError, RequestError

FENCE = '"""'


def chat_loop(session: ChatSession, terminal: Terminal) -> int:
    """Returns 0, or 1 if the input was not typed by a person and something in it failed.

    Raises EngineDeadError: nothing can be answered any more.
    """
    terminal.note("/help lists the commands")
    failed = False
    while True:
        try:
            text = read_message(terminal.read)
            if text.split(maxsplit=1)[:1] in (["/quit"], ["/exit"]):
                raise EOFError
            if text.strip():
                _carry_out(session, terminal, text)
        except EOFError:
            return int(failed and not terminal.interactive)
        except KeyboardInterrupt:
            if not terminal.interactive:
                raise
        except EngineDeadError:
            raise
        except PymllmError as error:
            failed = True
            terminal.error(str(error))


def read_message(read: Callable[[bool], str]) -> str:
    r"""One message, of one line or more.

    read: gives the next line; its argument says whether it continues a message. A line that ends with a
    backslash is continued; a line that starts with ``\"""`` opens a block, up to a line that ends with it.
    Raises EOFError at the end of the input, unless a message was begun.
    """
    line = read(False)
    if line.startswith(FENCE):
        return _block(line[len(FENCE) :], read)
    lines = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        try:
            line = read(True)
        except EOFError:
            line = ""
    return "\n".join([*lines, line])


def _block(line: str, read: Callable[[bool], str]) -> str:
    lines: list[str] = []
    while not line.rstrip().endswith(FENCE):
        lines.append(line)
        try:
            line = read(True)
        except EOFError:
            return "\n".join(lines).strip("\n")
    return "\n".join([*lines, line.rstrip()[: -len(FENCE)]]).strip("\n")


def _carry_out(session: ChatSession, terminal: Terminal, text: str) -> None:
    if not text.startswith("/") or text.startswith("//"):
        _show(session, terminal, session.say(text[1:] if text.startswith("//") else text))
        return
    command, _, argument = text[1:].partition(" ")
    argument = argument.strip()
    if command == "help":
        terminal.note(HELP)
    elif command == "reset":
        session.reset()
        terminal.note("the conversation is forgotten")
    elif command == "system":
        session.system = argument or None
        terminal.note("the system message is set" if argument else "there is no system message")
    elif command == "set":
        terminal.note(session.set(argument))
    elif command == "save":
        terminal.note(session.save(argument))
    elif command in KINDS:
        part, text = read_command(command, argument)
        session.attached.append(part)
        if text:
            _show(session, terminal, session.say(text))
        else:
            terminal.note(f"the {command} goes with the next message")
    elif command == "regen":
        _show(session, terminal, session.regenerate())
    else:
        raise RequestError(f"there is no command /{command}; /help lists them")


def _show(session: ChatSession, terminal: Terminal, answer: Iterator[str]) -> None:
    """Show an answer while it comes. Ctrl-C stops it, not the chat."""
    stopped = False
    terminal.begin_answer()
    try:
        with closing(answer) as pieces:  # type: ignore[type-var]
            for text in pieces:
                terminal.write(text)
    except KeyboardInterrupt:
        if not terminal.interactive:
            raise
        stopped = True
    finally:
        terminal.end_answer()
    terminal.footer(f"{'stopped; ' if stopped else ''}{session.footer}")
