"""``pymllm chat``: a chat in the terminal, with a configuration's model or a running server."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pymllm.cli.common import add_config_arguments, compose_arguments
from pymllm.errors import ConfigError

if TYPE_CHECKING:
    from pymllm.cli.chat_backends import ChatBackend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG [key=value ...], or the URL of a server."""
    add_config_arguments(parser, required=True)
    parser.description = "Chat with a configuration's model, or with a server: pymllm chat http://localhost:8000"
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--model", metavar="NAME", help="which of a server's models (default: its first)")
    parser.add_argument("--api-key", metavar="KEY", help="for a server (default: PYMLLM_API_KEY or OPENAI_API_KEY)")
    parser.add_argument("--plain", action="store_true", help="no colors and line editing, as when piped")


def execute(args: argparse.Namespace) -> int:
    """Raises PymllmError for what the user can fix. Returns 1 if a message of piped input was not answered."""
    from pymllm.cli.chat_loop import chat_loop
    from pymllm.cli.chat_session import ChatSession
    from pymllm.cli.chat_terminal import open_terminal

    backend = _backend(args)
    try:
        session = ChatSession(backend, system=args.system)
        return chat_loop(session, open_terminal(backend.name, plain=args.plain))
    finally:
        backend.close()


def _backend(args: argparse.Namespace) -> ChatBackend:
    from pymllm.cli.chat_backends import LocalBackend, RemoteBackend, api_key_of

    first = args.settings[0]
    if first.startswith(("http://", "https://")):
        if len(args.settings) > 1:
            raise ConfigError(f"'{args.settings[1]}' configures a model, but {first} is a running server")
        return RemoteBackend(first, model=args.model, api_key=api_key_of(args.api_key))
    for option in ("model", "api_key"):
        if getattr(args, option) is not None:
            raise ConfigError(f"--{option.replace('_', '-')} has an effect only with the URL of a server")
    config = compose_arguments(args)
    from pymllm.log import setup_logging

    # Information would land between the lines of the chat.
    setup_logging("warning" if config.log.level == "info" else config.log.level)
    return LocalBackend(config, progress=sys.stderr.isatty())
