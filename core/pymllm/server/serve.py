"""``serve``: from a configuration to a running server."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket

from pymllm.config import Config, ServerConfig
from pymllm.errors import ConfigError
from pymllm.frontend.frontend import Frontend
from pymllm.frontend.launch import launch_frontend
from pymllm.server.exposure import is_exposed
from pymllm.server.host import Host

log = logging.getLogger(__name__)


def serve(config: Config) -> int:
    """Load the model and serve it until SIGTERM or SIGINT; returns the exit status.

    The status is 0 after a drained shutdown, 1 when the engine died and was not to be (or could not be)
    restarted, 128 + N after a second signal N. The engine runs in its own process unless ``engine.process``
    is false. Raises PymllmError for what the user can fix, before the port is open.
    """

    def launch() -> Frontend:
        return launch_frontend(config, process=True)

    warn_if_exposed(config.server)
    with listener(config.server) as bound:
        return run(Host(launch(), config, bound, launch))


def run(host: Host) -> int:
    """Serve until stopped; returns the exit status. It is what this process does from now on: Python's garbage
    collector never looks again at what is there by now, or it would go through all of torch now and then and hold up
    every stream for a tenth of a second."""
    gc.collect()
    gc.freeze()
    return asyncio.run(host.run())


def listener(config: ServerConfig) -> socket.socket:
    """A bound socket that does not listen yet, so that a taken port is noticed before a model is loaded.
    Raises ConfigError."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # "localhost" is two addresses; most clients try the IPv4 one.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        # Nagle's algorithm holds small chunks back for 40 ms; asyncio turns it off where the protocol is named.
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port} ({reason}); change server.host or server.port"
        ) from error
    return bound


def warn_if_exposed(config: ServerConfig) -> None:
    """Log a warning when other machines can reach the server and it asks for no key."""
    if is_exposed(config):
        log.warning("server.host %s is reachable from other machines and server.api_key is not set", config.host)
