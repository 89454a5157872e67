"""Cuts the body of an HTTP/1.1 response out of the bytes of its connection (RFC 9112, section 6)."""

from __future__ import annotations

from collections.abc import Mapping


class HttpError(Exception):
    """What a server sent is no HTTP, or it went away in the middle of an answer."""


class Body:
    """``feed`` it what follows the headers. over: the body has come to its end; ends_with_connection: only the end of
    the connection can tell."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        """headers: names in lower case. Raises HttpError for a length that is no number."""
        self._chunks = _Chunks() if b"chunked" in headers.get(b"transfer-encoding", b"").lower() else None
        length = headers.get(b"content-length")
        self.ends_with_connection = self._chunks is None and length is None
        self._left = _number(length, 10) if length is not None and self._chunks is None else 0
        self.over = self._chunks is None and length is not None and self._left == 0

    def feed(self, data: bytes) -> bytes:
        """The part of the body in the next bytes. Raises HttpError."""
        if self._chunks is not None:
            part = self._chunks.feed(data)
            self.over = self._chunks.over
        elif self.ends_with_connection:
            part = data
        else:
            part = data[: self._left]
            self._left -= len(part)
            self.over = self._left == 0
        return part


class _Chunks:
    """The chunked coding. _left: bytes of a chunk, with its line end, that are still to come; 0 between chunks."""

    def __init__(self) -> None:
        self.over = False
        self._left = 0
        self._rest = b""
        self._trailers = False

    def feed(self, data: bytes) -> bytes:
        if self._rest:
            data, self._rest = self._rest + data, b""
        parts = []
        place, total = 0, len(data)
        while place < total and not self.over:
            if self._left:
                taken = min(self._left, total - place)
                parts.append(data[place : place + max(min(taken, self._left - 2), 0)])
                place, self._left = place + taken, self._left - taken
                continue
            end = data.find(b"\r\n", place)
            if end < 0:
                self._rest = data[place:]
                break
            self._line(data[place:end])
            place = end + 2
        return b"".join(parts)

    def _line(self, line: bytes) -> None:
        """The size of a chunk; or, after the last one, a trailer, which nobody needs."""
        if self._trailers:
            self.over = not line
            return
        size = _number(line.partition(b";")[0], 16)
        self._trailers = size == 0
        self._left = size + 2 if size else 0


def _number(text: bytes, base: int) -> int:
    try:
        value = int(text, base)
    except ValueError:
        value = -1
    if value < 0:
        raise HttpError(f"{text!r:.40} where a length should be")
    return value
