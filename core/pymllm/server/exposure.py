"""Whether strangers can reach the server."""

from __future__ import annotations

import ipaddress

from pymllm.config import ServerConfig


def is_exposed(config: ServerConfig) -> bool:
    """Whether other machines can reach the server, and it asks them for no key."""
    return config.api_key is None and not _is_local(config.host)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
