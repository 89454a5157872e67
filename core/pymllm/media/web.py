"""Fetching http and https URLs that strangers give, within limits of time, size and reach."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import httpcore
import httpx

from pymllm import __version__
from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media.budget import Budget
from pymllm.media.guard import GuardedBackend, Resolve, system_resolver

_REDIRECTS = (301, 302, 303, 307, 308)

_HEADERS = (
    (b"User-Agent", f"pymllm/{__version__}".encode()),
    (b"Accept", b"image/*, video/*, */*;q=0.5"),
    (b"Accept-Encoding", b"identity"),  # a compressed body could be a bomb, and pictures are compressed already
)


_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
"""A name in ASCII, or an address."""


class Web:
    """Fetches files. One object serves one event loop. Proxies of the environment are not used: a proxy would
    resolve names itself."""

    def __init__(
        self,
        config: MediaConfig,
        *,
        resolve: Resolve | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """resolve: how names become addresses; network: what connects to addresses; ssl_context: which certificates
        are good. By default the operating system's, asyncio's and the public ones."""
        self._config = config
        self._threads = ThreadPoolExecutor(config.max_concurrent_fetches, "pymllm-resolve")
        self._network = GuardedBackend(
            resolve or system_resolver(self._threads), private=config.allow_private_addresses, inner=network
        )
        # Made now, not at the first fetch: it takes long enough to hold up an event loop.
        self._ssl_context = ssl_context or (httpcore.default_ssl_context() if config.allow_http else None)
        self._slots = asyncio.Semaphore(config.max_concurrent_fetches)

    async def fetch(self, url: str, budget: Budget) -> bytes:
        """The content of a URL, redirects followed. To wait for a free slot does not count as time.

        Raises RequestError for whatever goes wrong. Cancelling it closes the connection.
        """
        if not self._config.allow_http:
            raise RequestError("this server fetches no URLs (media.allow_http); send a data: URL")
        async with self._slots:
            try:
                return await asyncio.wait_for(self._follow(url, budget), self._config.timeout_seconds)
            except asyncio.TimeoutError:
                limit = f"{self._config.timeout_seconds:g} seconds (media.timeout_seconds)"
                raise RequestError(f"the file was not fetched within {limit}") from None

    def close(self) -> None:
        """Let go of the resolver's threads. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _follow(self, given: str, budget: Budget) -> bytes:
        url = self._checked(given)
        # A pool for each file, without kept connections: nothing is shared between requests or checks.
        async with httpcore.AsyncConnectionPool(
            ssl_context=self._ssl_context, max_connections=1, max_keepalive_connections=0, network_backend=self._network
        ) as pool:
            for _ in range(self._config.max_redirects + 1):
                answer = await self._get(pool, url, budget)
                if isinstance(answer, bytes):
                    return answer
                url = self._checked(answer, url)
        raise RequestError(f"the URL redirects more than {self._config.max_redirects} times (media.max_redirects)")

    async def _get(self, pool: httpcore.AsyncConnectionPool, url: httpx.URL, budget: Budget) -> bytes | str:
        """The body, or the location of a redirect."""
        host = url.raw_host.decode("ascii")
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        # The outer clock alone limits the time; the share for connecting leaves some for another address.
        timeout = {"connect": self._config.timeout_seconds}
        headers = [(b"Host", url.netloc), *_HEADERS]
        try:
            async with pool.stream("GET", target, headers=headers, extensions={"timeout": timeout}) as response:
                given = _Headers(response.headers)
                if response.status in _REDIRECTS and given.one("location"):
                    return given.one("location")
                if response.status != 200:
                    raise RequestError(f"the host {host:.100} answered with status {response.status}")
                return await self._body(response, given, budget)
        except httpcore.ConnectError as error:
            if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
                raise RequestError(f"the host {host:.100} has no valid certificate") from None
            raise RequestError(f"the host {host:.100} cannot be connected to") from None
        except httpcore.TimeoutException:
            raise RequestError(f"the host {host:.100} cannot be connected to in time") from None
        except httpcore.NetworkError:
            raise RequestError(f"the host {host:.100} closed the connection") from None
        except httpcore.ProtocolError:
            raise RequestError(f"the answer of host {host:.100} ended early or is not valid HTTP") from None

    async def _body(self, response: httpcore.Response, headers: _Headers, budget: Budget) -> bytes:
        encoding = headers.one("content-encoding").lower()
        if encoding not in ("", "identity"):
            raise RequestError(f"the answer is compressed ({encoding:.20}), which was not asked for")
        most = self._config.max_bytes
        declared = headers.one("content-length")
        if declared.isdigit() and (len(declared) > 20 or int(declared) > most):
            raise _too_large(most)
        body = bytearray()
        async for chunk in response.aiter_stream():
            budget.take_bytes(len(chunk))
            body += chunk
            if len(body) > most:
                raise _too_large(most)
        if not body:
            raise RequestError("the file is empty")
        return bytes(body)

    def _checked(self, text: str, base: httpx.URL | None = None) -> httpx.URL:
        """The URL to ask next. Raises RequestError unless scheme, host and port may be asked."""
        what = "the URL" if base is None else "a redirect"
        try:
            url = httpx.URL(text) if base is None else base.join(text)
            raw_host = url.raw_host
        except (httpx.InvalidURL, ValueError):
            raise RequestError(f"{what} is not valid") from None
        if url.scheme not in ("http", "https"):
            raise RequestError(f"{what} must lead to http:// or https://")
        if url.userinfo:
            raise RequestError(f"{what} holds a user name or password, which is not supported")
        host = raw_host.decode("ascii").lower().rstrip(".")
        if not host:
            raise RequestError(f"{what} names no host")
        if not _HOST.fullmatch(host):
            raise RequestError(f"{what} is not valid")
        if not _listed(host, self._config.allowed_hosts):
            raise RequestError(f"{what} leads to {host:.100}, which is not among media.allowed_hosts")
        port = {"http": 80, "https": 443}[url.scheme] if url.port is None else url.port
        if port not in self._config.allowed_ports:
            raise RequestError(f"{what} leads to port {port}, which is not among media.allowed_ports")
        return url


class _Headers:
    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._headers = {name.lower().decode("latin-1"): value.decode("latin-1").strip() for name, value in headers}

    def one(self, name: str) -> str:
        """Its value, empty if there is none."""
        return self._headers.get(name, "")


def _listed(host: str, allowed: Iterable[str] | None) -> bool:
    if allowed is None:
        return True
    for name in (entry.lower().rstrip(".") for entry in allowed):
        if host == name or (name.startswith("*.") and host.endswith(name[1:])):
            return True
    return False


def _too_large(most: int) -> RequestError:
    return RequestError(f"the file is larger than {most} bytes (media.max_bytes)")
