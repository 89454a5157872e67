"""Where a chat is typed and shown: a real terminal with line editing and colors, or plain lines in a pipe."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any


class Terminal(ABC):
    """interactive: a person types, who sees an error and goes on."""

    interactive: bool

    @abstractmethod
    def read(self, continued: bool) -> str:
        """The next line that is typed. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def begin_answer(self) -> None:
        """An answer is about to come."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Show a piece of an answer at once."""

    @abstractmethod
    def end_answer(self) -> None:
        """The answer is over; what follows starts on a new line."""

    @abstractmethod
    def footer(self, text: str) -> None:
        """Say how an answer went."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Say something about the chat itself."""

    @abstractmethod
    def error(self, text: str) -> None:
        """Say what went wrong."""


def open_terminal(name: str, *, plain: bool) -> Terminal:
    """name: the model's, for the prompt."""
    if plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return PlainTerminal()
    return RichTerminal(name)


class PlainTerminal(Terminal):
    """Answers, and only they, go to standard output; all else to standard error."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()

    def read(self, continued: bool) -> str:
        if self.interactive:
            print("... " if continued else "> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def end_answer(self) -> None:
        self.write("\n")

    def footer(self, text: str) -> None:
        print(f"[{text}]", file=sys.stderr)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def error(self, text: str) -> None:
        print(f"pymllm: {text}", file=sys.stderr)


class RichTerminal(Terminal):
    """Line editing with a history (prompt_toolkit), colors (rich). Alt-Enter starts a new line."""

    interactive = True

    def __init__(self, name: str) -> None:
        from prompt_toolkit import PromptSession
        from rich.console import Console

        self._console: Any = Console(highlight=False)
        self._prompts: PromptSession[str] = PromptSession(key_bindings=_alt_enter())
        self._echo = _Echo(sys.stdin.fileno())
        self._console.print(f"[bold]{_escaped(name)}[/bold]")

    def read(self, continued: bool) -> str:
        from prompt_toolkit.formatted_text import FormattedText

        mark = "... " if continued else "you> "
        return self._prompts.prompt(FormattedText([("ansigreen bold", mark)]))

    def begin_answer(self) -> None:
        self._echo.off()

    def write(self, text: str) -> None:
        self._console.out(_printable(text), end="", highlight=False)
        self._console.file.flush()

    def end_answer(self) -> None:
        self._echo.restore()
        self._console.print()

    def footer(self, text: str) -> None:
        self._console.print(f"[dim]{_escaped(text)}[/dim]")

    def note(self, text: str) -> None:
        self._console.print(f"[cyan]{_escaped(text)}[/cyan]")

    def error(self, text: str) -> None:
        self._console.print(f"[red]{_escaped(text)}[/red]")


class _Echo:
    """Keeps what is typed during an answer from being shown amid it; it is read afterwards. Ctrl-C works."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[Any] | None = None

    def off(self) -> None:
        try:
            import termios
        except ImportError:  # Windows shows no typed keys by itself
            return
        self._before = termios.tcgetattr(self._descriptor)
        silent = list(self._before)
        silent[3] &= ~termios.ECHO
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, silent)

    def restore(self) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
            self._before = None


def _alt_enter() -> Any:
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _printable(text: str) -> str:
    """Without control characters, which a model could use to steer the terminal."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")
