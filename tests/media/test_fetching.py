"""What a fetch asks, whom it asks, and when it stops. Hostile answers are in test_hostile_web.py."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from media_files import noise, rgb_png
from media_site import Internet, Names, WebSite, answer, redirect, silent
from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media import ImageReference, Media, Picture, parse_part
from pymllm.media.loader import MediaLoader
from pymllm.media.web import Web

PIXELS = noise(3, 4)
PNG = rgb_png(PIXELS)
PICTURE = Picture.of(PIXELS)
ADDRESS, OTHER = "93.184.216.34", "2606:4700::1111"


def image(url: str, where: str = "here") -> ImageReference:
    reference = parse_part({"type": "image_url", "image_url": {"url": url}}, where)
    assert isinstance(reference, ImageReference)
    return reference


def around(internet: Internet, names: Names, context: ssl.SSLContext | None = None) -> Callable[[MediaConfig], Web]:
    return lambda config: Web(config, resolve=names, network=internet, ssl_context=context)


def test_a_public_picture(site: WebSite, load: Callable[..., list[Media]]) -> None:
    site.answers["/a.png"] = answer(PNG, headers={"Content-Type": "text/plain"})
    internet, names = Internet({ADDRESS: site.port}), Names({"pictures.example": [ADDRESS]})
    [picture] = load(image("http://pictures.example/a.png?x=%20y#fragment"), web=around(internet, names))
    assert picture == PICTURE
    [(path, headers)] = site.requests
    assert path == "/a.png?x=%20y"
    assert headers["host"] == "pictures.example"
    assert headers["accept-encoding"] == "identity"
    assert headers["user-agent"].startswith("pymllm/")
    assert "cookie" not in headers
    assert internet.connected == [(ADDRESS, 80)]


def test_redirects_are_followed_hop_by_hop(site: WebSite, load: Callable[..., list[Media]]) -> None:
    site.answers = {
        "/1": redirect("2?a=b", "301 Moved"),
        "/2": redirect("//other.example:8080/3", "307 Temporary"),
        "/3": redirect("http://pictures.example/4", "308 Permanent"),
        "/4": answer(PNG),
    }
    internet = Internet({ADDRESS: site.port, OTHER: site.port})
    names = Names({"pictures.example": [ADDRESS], "other.example": [OTHER]})
    allowed = {"max_redirects": 3, "allowed_ports": [80, 8080]}
    [picture] = load(image("http://pictures.example/1"), web=around(internet, names), **allowed)
    assert picture == PICTURE
    assert [(path, headers["host"]) for path, headers in site.requests] == [
        ("/1", "pictures.example"),
        ("/2?a=b", "pictures.example"),
        ("/3", "other.example:8080"),
        ("/4", "pictures.example"),
    ]
    assert internet.connected == [(ADDRESS, 80), (ADDRESS, 80), (OTHER, 8080), (ADDRESS, 80)]


def test_the_address_that_was_checked_is_the_one_connected_to(site: WebSite, load: Callable[..., list[Media]]) -> None:
    """A name server that answers something else the second time (DNS rebinding) is asked once a connection."""
    site.answers["/a.png"] = answer(PNG)
    internet, names = Internet({ADDRESS: site.port}), Names({"pictures.example": [[ADDRESS], ["127.0.0.1"]]})
    assert load(image("http://pictures.example/a.png"), web=around(internet, names)) == [PICTURE]
    assert names.asked == ["pictures.example"]
    assert internet.connected == [(ADDRESS, 80)]


def test_every_hop_is_checked_again(site: WebSite, load: Callable[..., list[Media]]) -> None:
    site.answers = {"/1": redirect("/2"), "/2": answer(PNG)}
    internet, names = Internet({ADDRESS: site.port}), Names({"pictures.example": [[ADDRESS], ["127.0.0.1"]]})
    with pytest.raises(RequestError, match=r"pictures.example is not on the public internet"):
        load(image("http://pictures.example/1"), web=around(internet, names))
    assert internet.connected == [(ADDRESS, 80)]


def test_an_address_without_an_answer_leaves_the_next(site: WebSite, load: Callable[..., list[Media]]) -> None:
    site.answers["/a.png"] = answer(PNG)
    internet, names = Internet({ADDRESS: site.port}), Names({"pictures.example": [OTHER, ADDRESS]})
    assert load(image("http://pictures.example/a.png"), web=around(internet, names)) == [PICTURE]
    assert internet.connected == [(OTHER, 80), (ADDRESS, 80)]


def test_an_address_instead_of_a_name(site: WebSite, load: Callable[..., list[Media]]) -> None:
    site.answers["/a.png"] = answer(PNG)
    internet = Internet({OTHER: site.port})
    assert load(image(f"http://[{OTHER}]/a.png"), web=around(internet, Names({}))) == [PICTURE]
    assert site.requests[0][1]["host"] == f"[{OTHER}]"


def test_private_addresses_by_setting(site: WebSite, load: Callable[..., list[Media]]) -> None:
    site.answers["/a.png"] = answer(PNG)
    allowed = {"allow_http": True, "allow_private_addresses": True, "allowed_ports": [site.port]}
    for host in ("127.0.0.1", "localhost"):
        assert load(image(f"http://{host}:{site.port}/a.png"), **allowed) == [PICTURE]
        assert site.requests[-1][1]["host"] == f"{host}:{site.port}"


@pytest.mark.parametrize(
    ("host", "allowed", "good"),
    [
        ("pictures.example", ["pictures.example"], True),
        ("PICTURES.example.", ["Pictures.Example"], True),
        ("a.b.pictures.example", ["*.pictures.example"], True),
        ("pictures.example", ["*.pictures.example"], False),
        ("not-pictures.example", ["pictures.example", "*.pictures.example"], False),
        ("pictures.example.evil.example", ["pictures.example"], False),
        ("pictures.example", [], False),
    ],
)
def test_hosts_by_setting(
    site: WebSite, load: Callable[..., list[Media]], host: str, allowed: list[str], good: bool
) -> None:
    site.answers["/a.png"] = answer(PNG)
    names = Names({host.lower(): [ADDRESS]})
    web = around(Internet({ADDRESS: site.port}), names)
    if good:
        assert load(image(f"http://{host}/a.png"), web=web, allowed_hosts=allowed) == [PICTURE]
        return
    with pytest.raises(RequestError, match=r"which is not among media.allowed_hosts"):
        load(image(f"http://{host}/a.png"), web=web, allowed_hosts=allowed)
    assert names.asked == []


def test_no_web_at_all(load: Callable[..., list[Media]]) -> None:
    with pytest.raises(RequestError, match=r"fetches no URLs \(media.allow_http\)"):
        load(image("https://pictures.example/a.png"), allow_http=False)


@pytest.fixture
def secure(certificate: Path) -> WebSite:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    site = WebSite().start(context)
    site.answers["/a.png"] = answer(PNG)
    return site


def test_https_is_asked_by_name_at_the_checked_address(
    secure: WebSite, certificate: Path, load: Callable[..., list[Media]]
) -> None:
    trusting = ssl.create_default_context(cafile=certificate)
    internet = Internet({ADDRESS: secure.port})
    names = Names({"pictures.example": [ADDRESS], "evil.example": [ADDRESS]})
    assert load(image("https://pictures.example/a.png"), web=around(internet, names, trusting)) == [PICTURE]
    assert secure.names == ["pictures.example"]
    assert internet.connected == [(ADDRESS, 443)]
    with pytest.raises(RequestError, match=r"evil.example has no valid certificate"):  # of another name
        load(image("https://evil.example/a.png"), web=around(internet, names, trusting))
    with pytest.raises(RequestError, match=r"pictures.example has no valid certificate"):  # signed by nobody
        load(image("https://pictures.example/a.png"), web=around(internet, names))
    secure.close()


def test_fetches_at_a_time_are_bounded(site: WebSite, load: Callable[..., list[Media]]) -> None:
    lock, peak, open_now = threading.Lock(), 0, 0
    together = threading.Barrier(3)

    def counted(connection: object) -> None:
        nonlocal peak, open_now
        with lock:
            open_now += 1
            peak = max(peak, open_now)
        together.wait(20)  # three of the nine at a time: fewer would break it
        with lock:
            open_now -= 1
        answer(PNG)(connection)  # type: ignore[arg-type]

    site.answers["/a.png"] = counted
    web = around(Internet({ADDRESS: site.port}), Names({"pictures.example": [ADDRESS]}))
    references = [image("http://pictures.example/a.png", f"part {i}") for i in range(9)]
    assert load(*references, web=web, max_concurrent_fetches=3) == [PICTURE] * 9
    assert peak == 3


def test_an_aborted_request_closes_its_connections(site: WebSite) -> None:
    site.answers["/slow"] = silent
    config = MediaConfig(timeout_seconds=60)

    async def run() -> None:
        web = around(Internet({ADDRESS: site.port}), Names({"pictures.example": [ADDRESS]}))
        loader = MediaLoader(config, web=web(config))
        loading = asyncio.ensure_future(loader.load([image("http://pictures.example/slow")]))
        while not site.requests:
            await asyncio.sleep(0.01)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        loader.close()

    asyncio.run(run())
    assert site.closed_by_client.wait(20)


def test_the_first_failure_ends_the_other_fetches(site: WebSite, load: Callable[..., list[Media]]) -> None:
    site.answers = {"/slow": silent, "/none": answer(status="404 Not Found")}
    web = around(Internet({ADDRESS: site.port}), Names({"pictures.example": [ADDRESS]}))
    references = [image("http://pictures.example/slow", "part 0"), image("http://pictures.example/none", "part 1")]
    with pytest.raises(RequestError, match=r"^part 1: the host pictures.example answered with status 404$") as refused:
        load(*references, web=web, timeout_seconds=60)
    assert refused.value.field == "part 1"
    assert site.closed_by_client.wait(20)


def test_files_of_a_request_are_limited_together(site: WebSite, load: Callable[..., list[Media]]) -> None:
    site.answers["/a"] = answer(rgb_png(noise(36, 36)))  # 4 kB
    web = around(Internet({ADDRESS: site.port}), Names({"pictures.example": [ADDRESS]}))
    with pytest.raises(RequestError, match=r"together larger than 5000 bytes \(media.max_request_bytes\)"):
        load(*[image("http://pictures.example/a")] * 5, web=web, max_bytes=4500, max_request_bytes=5000)
