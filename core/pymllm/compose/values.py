"""Values that have the right type and would still fail later."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

Rule = Callable[[Any], str | None]
"""Says what is wrong with a value ("must be ..."), or None."""

_MOST = 2**31 - 1


def problem(key: str, value: Any) -> str | None:
    """What is wrong with the value of a core key, or None. Null values are not asked about."""
    if isinstance(value, str) and not value.strip():
        return "must not be empty"
    rule = _RULES.get(key)
    return rule(value) if rule else None


def _integer(low: int, high: int = _MOST) -> Rule:
    def rule(value: Any) -> str | None:
        if low <= value <= high:
            return None
        bound = f"at least {low}" if value < low else f"at most {high}"
        return f"must be {bound}, not {value}"

    return rule


def _fraction(value: Any) -> str | None:
    return None if 0 < value <= 1 else f"must be above 0 and at most 1, not {value}"


def _seconds(value: Any) -> str | None:
    return None if math.isfinite(value) and value >= 0 else f"must be a number of seconds from 0 up, not {value}"


def _time_limit(value: Any) -> str | None:
    return None if 0 < value <= _MOST else f"must be a number above 0 and at most {_MOST}, not {value}"


def _ports(value: Any) -> str | None:
    wrong = [port for port in value if not 1 <= port <= 65535]
    return f"must hold ports from 1 to 65535, not {wrong[0]}" if wrong else None


def _hosts(value: Any) -> str | None:
    wrong = [host for host in value if not re.fullmatch(r"(\*\.)?[A-Za-z0-9._:-]+", host)]
    return f"must hold host names such as example.com or *.example.com, not '{wrong[0]}'" if wrong else None


def _folders(value: Any) -> str | None:
    wrong = [folder for folder in value if not folder.startswith("/")]
    return f"must hold absolute paths of folders, not '{wrong[0]}'" if wrong else None


def _device(value: Any) -> str | None:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        return None
    return f"must be auto, cpu, cuda or cuda:N, not '{value}'"


def _api_key(value: Any) -> str | None:
    if re.fullmatch(r"[!-~]+", value):
        return None
    return "must be printable ASCII without spaces: no HTTP client could send it"


_RULES: dict[str, Rule] = {
    "model.max_context": _integer(1),
    "cache.page_size": _integer(1),
    "engine.device": _device,
    "engine.memory_fraction": _fraction,
    "engine.max_running_requests": _integer(1),
    "engine.max_total_tokens": _integer(1),
    "engine.max_batch_tokens": _integer(1),
    "engine.stall_seconds": _seconds,
    "engine.seed": _integer(-(2**63), 2**64 - 1),
    "server.port": _integer(0, 65535),
    "server.api_key": _api_key,
    "server.max_queued_requests": _integer(1),
    "server.max_body_bytes": _integer(1, 2**63 - 1),
    "server.drain_seconds": _seconds,
    "media.allowed_local_folders": _folders,
    "media.allowed_hosts": _hosts,
    "media.allowed_ports": _ports,
    "media.max_redirects": _integer(0),
    "media.max_concurrent_fetches": _integer(1, 1024),
    "media.timeout_seconds": _time_limit,
    "media.decode_timeout_seconds": _time_limit,
    "media.decode_threads": _integer(1, 1024),
    "media.max_concurrent_requests": _integer(1, 65536),
    "media.max_items_per_request": _integer(0),
    "media.max_bytes": _integer(1, 2**63 - 1),
    "media.max_request_bytes": _integer(1, 2**63 - 1),
    "media.max_pixels": _integer(1),
    "media.max_request_pixels": _integer(1, 2**63 - 1),
    "media.max_video_frames": _integer(1),
    "media.max_video_seconds": _time_limit,
    "media.video_fps": _time_limit,
    "media.max_tokens": _integer(1),
    "media.cache_bytes": _integer(0, 2**63 - 1),
}
