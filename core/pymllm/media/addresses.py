"""Which IP addresses may be connected to on behalf of a stranger.

The tables are IANA's special-purpose registries (RFC 6890 and its successors), written out because what
Python's ``ipaddress`` calls global differs between its versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address


def _v4(*networks: str) -> tuple[IPv4Network, ...]:
    return tuple(IPv4Network(network) for network in networks)


def _v6(*networks: str) -> tuple[IPv6Network, ...]:
    return tuple(IPv6Network(network) for network in networks)


_PRIVATE_V4 = _v4("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
_PRIVATE_V6 = _v6("::1/128", "fc00::/7")

_SPECIAL_V4 = _v4(
    "0.0.0.0/8",
    "169.254.0.0/16",  # link-local; clouds hand out their machines' credentials at 169.254.169.254
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)

_UNICAST_V6 = IPv6Network("2000::/3")
_SPECIAL_V6 = _v6("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20")

_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")


def permitted(address: str, *, private: bool) -> bool:
    """Whether a numeric address may be connected to: public ones; with ``private`` also this machine's own and
    those of private networks. Never link-local, multicast, reserved or unspecified ones. An IPv6 address that
    stands for an IPv4 address (mapped, NAT64, 6to4) is judged by that one. What is no address is not permitted."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return _permitted_v4(parsed, private)
    return parsed.scope_id is None and _permitted_v6(parsed, private)


def _permitted_v4(address: IPv4Address, private: bool) -> bool:
    if _within(address, _PRIVATE_V4):
        return private
    return not _within(address, _SPECIAL_V4)


def _permitted_v6(address: IPv6Address, private: bool) -> bool:
    bits = int(address)
    if address in _MAPPED or address in _NAT64:
        return _permitted_v4(IPv4Address(bits & 0xFFFFFFFF), private)
    if address in _SIX_TO_FOUR:
        return _permitted_v4(IPv4Address(bits >> 80 & 0xFFFFFFFF), private)
    if _within(address, _PRIVATE_V6):
        return private
    return address in _UNICAST_V6 and not _within(address, _SPECIAL_V6)


def _within(address: IPv4Address | IPv6Address, networks: Iterable[IPv4Network] | Iterable[IPv6Network]) -> bool:
    return any(address in network for network in networks)
