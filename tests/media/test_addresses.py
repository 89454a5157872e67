"""Only public addresses are connected to, however they are written."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv6Address

import pytest

from pymllm.media.addresses import permitted

PUBLIC = ["93.184.216.34", "1.1.1.1", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0", "223.255.255.255"]
PUBLIC += [
    "100.63.255.255",
    "100.128.0.0",
    "2606:4700::1111",
    "2a00:1450:4001::1",
    "::ffff:1.1.1.1",
    "64:ff9b::1.1.1.1",
]
PUBLIC += ["2002:101:101::1"]

PRIVATE = ["127.0.0.1", "127.255.255.255", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"]
PRIVATE += ["::1", "fc00::1", "fdff::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2002:7f00:1::"]

NEVER = ["0.0.0.0", "0.1.2.3", "169.254.169.254", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"]
NEVER += ["224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "fe80::1", "fec0::1", "ff02::1"]
NEVER += ["fe80::1%1", "2001:db8::1", "2001::1", "3fff::1", "64:ff9b:1::1", "100::1", "::127.0.0.1", "4000::1"]
NEVER += ["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2606:4700::1111%1"]
NEVER += ["", "localhost", "127.1", "2130706433", "1.1.1.1 "]


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert permitted(address, private=False)
    assert permitted(address, private=True)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_by_setting(address: str) -> None:
    assert not permitted(address, private=False)
    assert permitted(address, private=True)


@pytest.mark.parametrize("address", NEVER)
def test_never(address: str) -> None:
    assert not permitted(address, private=False)
    assert not permitted(address, private=True)


def test_nothing_is_permitted_that_python_calls_not_global() -> None:
    draw = random.Random(7)
    fours = [IPv4Address(draw.getrandbits(32)) for _ in range(5000)]
    sixes = [IPv6Address(draw.choice([0x2, 0x3, 0x0, 0xF]) << 124 | draw.getrandbits(124)) for _ in range(5000)]
    wrong = [a for a in (*fours, *sixes) if permitted(str(a), private=False) and not a.is_global]
    assert wrong == []
    assert sum(permitted(str(a), private=False) for a in fours) > 4000
