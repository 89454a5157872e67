"""The benchmark's own HTTP client: bodies however they are cut, connections that are used again, and servers that
break off, fall silent, or speak something else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pymllm.bench.http_body import Body, HttpError
from pymllm.bench.http_client import HttpClient

CHUNKED = b"5\r\nhello\r\n6;name=value\r\n wor\r\n\r\nB\r\nld, and so \r\n2\r\non\r\n0\r\nTrailer: x\r\n\r\n"
HELLO = b"hello wor\r\nld, and so on"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def fed(body: Body, data: bytes, size: int) -> bytes:
    parts = [body.feed(data[start : start + size]) for start in range(0, len(data), size)]
    return b"".join(parts)


@pytest.mark.parametrize("size", range(1, len(CHUNKED) + 1))
def test_chunks_come_out_whole_however_they_come_in(size: int) -> None:
    body = Body({b"transfer-encoding": b"chunked"})
    assert fed(body, CHUNKED[:-1], size) == HELLO
    assert not body.over
    assert body.feed(CHUNKED[-1:]) == b""
    assert body.over


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_body_of_known_length_ends_there(size: int) -> None:
    body = Body({b"content-length": b"7"})
    assert fed(body, b"1234567XYZ", size) == b"1234567"
    assert body.over
    assert Body({b"content-length": b"0"}).over


def test_a_body_of_unknown_length_ends_with_its_connection() -> None:
    body = Body({})
    assert body.ends_with_connection
    assert fed(body, b"anything", 3) == b"anything"
    assert not body.over


@pytest.mark.parametrize("wrong", [b"x\r\n", b"-5\r\n", b"\r\n"])
def test_what_is_no_length_is_an_error(wrong: bytes) -> None:
    with pytest.raises(HttpError, match="where a length should be"):
        Body({b"transfer-encoding": b"chunked"}).feed(wrong)
    with pytest.raises(HttpError, match="where a length should be"):
        Body({b"content-length": wrong.strip() or b"?"})


def post(
    serve: Serve, count: int = 1, timeout: float = 20.0, pause: float = 0.0
) -> tuple[list[tuple[int, bytes]], int]:
    """What ``count`` requests, one after another, were answered, and how many connections that took."""
    connections = 0

    async def main() -> list[tuple[int, bytes]]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await serve(reader, writer)
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}/prefix", {"X-Key": "k"}, timeout)
        answers = []
        for _ in range(count):
            found: list[tuple[int, bytes]] = []
            await client.post("v1/route", b"content", lambda status, data, found=found: found.append((status, data)))
            answers.append((found[-1][0], b"".join(data for _, data in found)))
            await asyncio.sleep(pause)
        client.close()
        server.close()
        return answers

    return asyncio.run(main()), connections


async def request(reader: asyncio.StreamReader) -> bytes:
    """The head and the content of a request; nothing when the client has gone."""
    try:
        return await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(len(b"content"))
    except asyncio.IncompleteReadError:
        return b""


def test_a_connection_is_used_again() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while one := await request(reader):
            asked.append(one)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED)

    assert post(serve, 3) == ([(200, HELLO)] * 3, 1)
    assert asked[0] == asked[2]
    assert asked[0].startswith(b"POST /prefix/v1/route HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Key: k\r\n" in asked[0]
    assert asked[0].endswith(b"\r\nContent-Length: 7\r\n\r\ncontent")


@pytest.mark.parametrize("said", [b"Connection: close\r\n", b""])
def test_a_connection_that_the_server_closes_is_not_missed(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 404 Not Found\r\n" + said + b"Content-Length: 2\r\n\r\nno")

    assert post(serve, 3) == ([(404, b"no")] * 3, 3)
    assert post(serve, 2, pause=0.1) == ([(404, b"no")] * 2, 2)


def test_an_old_server_ends_its_answer_with_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\npart ")
        await writer.drain()
        writer.write(b"and part")

    assert post(serve, 2) == ([(200, b"part and part")] * 2, 2)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "where a status line should be"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000, "the headers have no end"),
    ],
)
def test_what_is_no_answer_is_an_error(answer: bytes, message: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(answer)

    with pytest.raises(HttpError, match=message):
        post(serve)


def test_silence_is_an_error_and_slowness_is_none() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        for part in (b"HTTP/1.1 200 OK\r\n", b"Content-Length: 4\r\n\r\n", b"sl", b"ow"):
            await asyncio.sleep(0.2)
            writer.write(part)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nsl")
        await reader.read()  # until the client gives up

    assert post(slow, timeout=0.5) == ([(200, b"slow")], 1)
    with pytest.raises(asyncio.TimeoutError):
        post(silent, timeout=0.3)
