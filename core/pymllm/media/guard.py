"""The only place where a socket is opened for a stranger's URL: the address that was checked is the one used."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import Any

import httpcore

from pymllm.errors import RequestError
from pymllm.media.addresses import permitted

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> numeric addresses. Raises OSError for a name that has none."""

_MOST_TRIED = 4


def system_resolver(threads: Executor) -> Resolve:
    """The resolver of the operating system. It cannot be interrupted, so it has threads of its own."""

    async def resolve(host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(threads, _look_up, host, port)
        return list(dict.fromkeys(found))

    return resolve


def _look_up(host: str, port: int) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to a name by one of its addresses, if all of them may be connected to.

    httpcore asks for a connection by the URL's host and goes on using that name for the Host header, SNI and the
    certificate. Since a name is resolved once a connection, here, an answer that changes cannot get past the check.
    """

    def __init__(self, resolve: Resolve, *, private: bool, inner: httpcore.AsyncNetworkBackend | None = None) -> None:
        """private: see :func:`~pymllm.media.addresses.permitted`. inner: what connects to numeric addresses."""
        self._resolve = resolve
        self._private = private
        self._inner = inner or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises RequestError for a name without addresses or with one that is not permitted."""
        addresses = await self._checked(host, port)
        share = timeout / len(addresses) if timeout is not None else None
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(addresses[-1], port, share, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise NotImplementedError("a URL names no socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)

    async def _checked(self, host: str, port: int) -> list[str]:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):  # UnicodeError: a label of the name is too long
            addresses = []
        if not addresses:
            raise RequestError(f"the host {host:.100} is not known")
        if not all(permitted(address, private=self._private) for address in addresses):
            raise RequestError(f"the host {host:.100} is not on the public internet (media.allow_private_addresses)")
        return addresses[:_MOST_TRIED]
