"""URLs and servers that mean harm, or are broken: each ends in a sentence, and the loader goes on working."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from media_files import noise, rgb_png
from media_site import Answer, Internet, Names, WebSite, answer, endless, raw, redirect, silent
from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media import Picture, offline_image, parse_part
from pymllm.media.blocking import BlockingLoader
from pymllm.media.web import Web

PIXELS = noise(30, 40)
PNG = rgb_png(PIXELS)
ADDRESS = "93.184.216.34"
LIMIT = 10_000
"""Bytes of a file; the good one is smaller."""

CONFIG = MediaConfig(timeout_seconds=1.0, max_bytes=LIMIT, max_redirects=2)

NAMES: dict[str, list[str] | list[list[str]]] = {
    "good.example": [ADDRESS],
    "dead.example": ["93.184.216.99"],
    "home.example": ["127.0.0.1"],
    "lan.example": ["192.168.1.1"],
    "both.example": [ADDRESS, "10.0.0.1"],
    "six.example": ["::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "nat64.example": ["64:ff9b::7f00:1"],
    "cloud.example": ["169.254.169.254"],
    "nothing.example": [],
    "garbage.example": ["not an address"],
    "xn--bcher-kva.example": ["10.0.0.1"],
}
PUBLIC = "is not on the public internet (media.allow_private_addresses)"

URLS = [
    ("http://127.0.0.1/", PUBLIC),
    ("http://localhost/", PUBLIC),
    ("http://127.1/", PUBLIC),
    ("http://2130706433/", PUBLIC),
    ("http://0x7f000001/", PUBLIC),
    ("http://0177.0.0.1/", "is not valid"),
    ("http://0/", PUBLIC),
    ("http://0.0.0.0/", PUBLIC),
    ("http://[::1]/", PUBLIC),
    ("http://[::]/", PUBLIC),
    ("http://[::ffff:127.0.0.1]/", PUBLIC),
    ("http://[::ffff:7f00:1]/", PUBLIC),
    ("http://[64:ff9b::127.0.0.1]/", PUBLIC),
    ("http://[fe80::1]/", PUBLIC),
    ("http://10.0.0.1/", PUBLIC),
    ("http://192.168.0.1/", PUBLIC),
    ("http://100.64.0.1/", PUBLIC),
    ("http://169.254.169.254/latest/meta-data/", PUBLIC),
    ("http://224.0.0.1/", PUBLIC),
    ("http://255.255.255.255/", PUBLIC),
    ("http://home.example/", PUBLIC),
    ("http://HOME.example./", "is not known"),
    ("http://lan.example/", PUBLIC),
    ("http://both.example/", PUBLIC),
    ("http://six.example/", PUBLIC),
    ("http://mapped.example/", PUBLIC),
    ("http://nat64.example/", PUBLIC),
    ("http://cloud.example/", PUBLIC),
    ("http://b\u00fccher.example/", PUBLIC),
    ("http://garbage.example/", PUBLIC),
    ("http://nothing.example/", "is not known"),
    ("http://unknown.example/", "is not known"),
    (f"http://{'a' * 64}.example/", "is not known"),
    ("http://dead.example/", "cannot be connected to"),
    ("https://good.example/", "was not fetched within 1 seconds"),
    ("http://good.example:22/", "port 22, which is not among media.allowed_ports"),
    ("http://good.example:0/", "port 0, which is not among media.allowed_ports"),
    ("http://good.example:99999/", "port 99999, which is not among media.allowed_ports"),
    ("http://good.example:8x/", "is not valid"),
    ("http://user:password@good.example/", "holds a user name or password"),
    ("http://good.example\\@127.0.0.1/", "holds a user name or password"),
    ("http://", "names no host"),
    ("http:///path", "names no host"),
    ("http:good.example/", "names no host"),
    ("http://[::1/", "is not valid"),
    ("http://good .example/", "is not valid"),
    ("http://good.example/\x00", "is not valid"),
    ("http://good.example/\r\nHost: evil", "is not valid"),
    ("http://\ud800.example/", "is not valid"),
]


@dataclass
class World:
    """A loader, the one site of its internet, and what its loader connected to."""

    loader: BlockingLoader
    site: WebSite
    internet: Internet

    def refusal(self, url: str) -> str:
        """What the loader says about it. Afterwards it still loads, and nothing was connected to but the site."""
        with pytest.raises(RequestError) as refused:
            self.loader.load([parse_part({"type": "image_url", "image_url": url}, "messages[3].content[1]")])
        message = str(refused.value)
        assert refused.value.field == "messages[3].content[1]"
        assert message.startswith("messages[3].content[1]: ")
        assert "\n" not in message
        message.encode()
        assert self.loader.load([offline_image(PNG, "good")]) == [Picture.of(PIXELS)]
        assert {address for address, _ in self.internet.connected} <= {ADDRESS, "93.184.216.99"}
        return message


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    site = WebSite().start()
    internet = Internet({ADDRESS: site.port})
    loader = BlockingLoader(CONFIG, web=Web(CONFIG, resolve=Names(NAMES), network=internet))
    yield World(loader, site, internet)
    loader.close()
    site.close()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("url", "sentence"), URLS)
def test_urls(world: World, url: str, sentence: str) -> None:
    before = len(world.site.requests)
    assert sentence in world.refusal(url)
    assert len(world.site.requests) == before


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TOO_LARGE = f"larger than {LIMIT} bytes (media.max_bytes)"
EARLY = "ended early or is not valid HTTP"
TIMEOUT = "not fetched within 1 seconds (media.timeout_seconds)"
BOMB = gzip.compress(b"\0" * 50_000_000)


def dripping(connection: object) -> None:
    """A picture at a byte a tenth of a second."""
    waiting = threading.Event()
    for byte in HEAD + b"Content-Length: %d\r\n\r\n" % len(PNG) + PNG:
        connection.sendall(bytes([byte]))  # type: ignore[attr-defined]
        waiting.wait(0.1)


ANSWERS: list[tuple[str, Answer, str]] = [
    ("404", answer(b"no", status="404 Not Found"), "answered with status 404"),
    ("403 with a picture", answer(PNG, status="403 Forbidden"), "answered with status 403"),
    ("500", answer(status="500 Oops"), "answered with status 500"),
    ("204", raw(b"HTTP/1.1 204 No Content\r\n\r\n"), "answered with status 204"),
    ("206", answer(PNG, status="206 Partial"), "answered with status 206"),
    ("304", answer(status="304 Not Modified"), "answered with status 304"),
    ("401", answer(status="401 Who", headers={"WWW-Authenticate": "Basic"}), "answered with status 401"),
    ("999", answer(status="999 ?"), "answered with status 999"),
    ("a redirect to nowhere", answer(status="302 Found"), "answered with status 302"),
    ("a redirect to this machine", redirect("http://127.0.0.1/"), PUBLIC),
    ("a redirect to a name of this machine", redirect("http://home.example/"), PUBLIC),
    ("a redirect to metadata", redirect("http://169.254.169.254/"), PUBLIC),
    ("a redirect to a file", redirect("file:///etc/passwd"), "a redirect must lead to http:// or https://"),
    ("a redirect to data", redirect("data:image/png;base64,AAAA"), "a redirect must lead to http"),
    ("a redirect to ftp", redirect("ftp://good.example/"), "a redirect must lead to http"),
    ("a redirect to another port", redirect("http://good.example:6379/"), "a redirect leads to port 6379"),
    ("a redirect with credentials", redirect("http://a:b@good.example/"), "a redirect holds a user name"),
    ("a redirect to garbage", redirect("http://["), "a redirect is not valid"),
    ("a loop", redirect("/x"), "redirects more than 2 times (media.max_redirects)"),
    ("an endless chain", redirect("/x?x"), "redirects more than 2 times"),
    ("silence", silent, TIMEOUT),
    ("a slow body", dripping, TIMEOUT),
    ("slow headers", endless(HEAD, b"A: b\r\n", 0.1), TIMEOUT),
    ("a slow endless body", endless(HEAD + b"\r\n", b"x", 0.05), TIMEOUT),
    ("endless 1xx answers", endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.01), TIMEOUT),
    ("endless headers", endless(HEAD, b"A: " + b"b" * 1000 + b"\r\n"), EARLY),
    ("an endless header", endless(HEAD + b"A: ", b"b" * 1000), EARLY),
    ("an endless body", endless(HEAD + b"\r\n", b"x" * 1000), TOO_LARGE),
    ("endless chunks", endless(CHUNKED, b"1\r\nx\r\n" * 100), TOO_LARGE),
    ("an endless chunk", endless(CHUNKED + b"ffffffff\r\n", b"x" * 1000), TOO_LARGE),
    ("an endless chunk extension", endless(CHUNKED + b"1;", b"x" * 1000), EARLY),
    ("an honest large length", answer(PNG, length=LIMIT + 1), TOO_LARGE),
    ("an absurd length", answer(PNG, headers={"Content-Length": "9" * 30}), ""),
    ("a length that is too small", answer(PNG, length=len(PNG) - 10), "the PNG file is cut off or broken"),
    ("a length that is too large", answer(PNG, length=len(PNG) + 10), EARLY),
    ("a negative length", answer(PNG, length=-1), EARLY),
    ("chunks that end early", raw(CHUNKED + b"10\r\nabc"), EARLY),
    ("no valid chunk", raw(CHUNKED + b"xyz\r\nabc"), EARLY),
    ("a compressed bomb", answer(BOMB[:9000], headers={"Content-Encoding": "gzip"}), "compressed (gzip)"),
    ("a compressed transfer", raw(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + BOMB[:9000]), EARLY),
    ("a gzip file", answer(BOMB[:9000]), "it is gzip data, not a picture"),
    ("HTML that calls itself a picture", answer(b"<html>", headers={"Content-Type": "image/png"}), "it is HTML"),
    ("SVG", answer(b"\n <svg/>", headers={"Content-Type": "image/svg+xml"}), "it is HTML, XML or SVG data"),
    ("noise", answer(bytes(PIXELS[0])), "the file is of no known format"),
    ("no body", answer(b""), "the file is empty"),
    ("no answer", raw(b""), EARLY),
    ("another protocol", raw(b"SSH-2.0-OpenSSH_9.6\r\n"), EARLY),
    ("half a picture", answer(PNG[: len(PNG) // 2]), "the PNG file is cut off or broken"),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("server", "sentence"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS])
def test_answers(world: World, server: Answer, sentence: str) -> None:
    world.site.answers["/x"] = server
    message = world.refusal("http://good.example/x")
    assert sentence in message
    assert "html" not in message  # nothing of the content


def test_the_site_answers_otherwise(world: World) -> None:
    world.site.answers["/x"] = answer(PNG)
    reference = parse_part({"type": "image_url", "image_url": "http://good.example/x"}, "here")
    assert world.loader.load([reference]) == [Picture.of(PIXELS)]
