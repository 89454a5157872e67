"""Web servers on localhost that answer byte for byte what a test wants, and an internet in which they stand."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpcore

Answer = Callable[[socket.socket], None]
"""Writes to a connection whose request was read."""


@dataclass
class WebSite:
    """A server in threads. answers: by path; requests: (path, headers) as they came; SNI names of TLS."""

    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    port: int = 0
    closed_by_client: threading.Event = field(default_factory=threading.Event)
    _server: Any = None

    def start(self, context: ssl.SSLContext | None = None) -> WebSite:
        site = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                connection = self.request
                try:
                    if context is not None:
                        connection = context.wrap_socket(connection, server_side=True)
                    site._answer(connection)
                except OSError:  # the client closed, as it may
                    site.closed_by_client.set()
                finally:
                    connection.close()

        if context is not None:
            context.sni_callback = lambda _, name, __: self.names.append(name)
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(65536)
            if not received:
                return
            head += received
        first, *lines = head.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        path = first.split(" ")[1]
        self.requests.append((path, headers))
        self.answers[path.partition("?")[0]](connection)


class Internet(httpcore.AsyncNetworkBackend):
    """Where public addresses lead: to ports of this machine. connected: the addresses asked for, in order."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._inner = httpcore.AnyIOBackend()
        self.connected: list[tuple[str, int]] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append((host, port))
        if host not in self._ports:
            raise httpcore.ConnectError("no route to host")
        return await self._inner.connect_tcp("127.0.0.1", self._ports[host], timeout)

    async def connect_unix_socket(self, path: str, timeout: float | None = None, socket_options: Any = None) -> Any:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class Names:
    """A resolver of a table; what is not in it (numeric addresses) goes to the operating system.

    asked: every name that was looked up. A list of lists gives its answers one after the other.
    """

    def __init__(self, table: Mapping[str, list[str] | list[list[str]]]) -> None:
        self._table = dict(table)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host not in self._table:
            if host.endswith(".example"):
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        answer = self._table[host]
        if answer and isinstance(answer[0], list):
            return answer.pop(0) if len(answer) > 1 else answer[0]  # type: ignore[return-value]
        return answer  # type: ignore[return-value]


def answer(
    body: bytes = b"", *, status: str = "200 OK", headers: Mapping[str, str] | None = None, length: int | None = None
) -> Answer:
    """A whole answer. length: what is said of the body, if not the truth."""
    given = {"Content-Length": str(len(body) if length is None else length), "Connection": "close", **(headers or {})}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return raw("\r\n".join(lines).encode("latin-1") + body)


def redirect(location: str, status: str = "302 Found") -> Answer:
    return answer(status=status, headers={"Location": location})


def raw(content: bytes) -> Answer:
    """Exactly these bytes, then the connection is closed."""
    return lambda connection: connection.sendall(content)


def endless(start: bytes, again: bytes, pause: float = 0.0) -> Answer:
    """``start``, then ``again`` until the client closes."""

    def send(connection: socket.socket) -> None:
        connection.sendall(start)
        waiting = threading.Event()
        while True:
            connection.sendall(again)
            waiting.wait(pause)

    return send


def silent(connection: socket.socket) -> None:
    """Nothing, until the client closes."""
    while connection.recv(4096):
        pass
    raise ConnectionResetError
