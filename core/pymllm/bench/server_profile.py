"""A profile of the server, taken in the middle of a load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from pymllm.bench.http_body import HttpError
from pymllm.bench.http_client import HttpClient
from pymllm.bench.streaming import error_text

START_AT = 0.3
"""Share of the load after which the profile starts: by then as many requests run as ever will."""

POLL_SECONDS = 0.02


class ServerProfile:
    """Asks a pymllm or SGLang server for a profile, and vLLM as far as it listens.

    trace: where it is, on the server's machine, if the server said so. error: why there is none. asked: the server
    was asked to start.
    """

    def __init__(self, steps: int, folder: str | None = None) -> None:
        """folder: on the server's machine; None leaves it to the server."""
        self.trace: str | None = None
        self.error: str | None = "the load was over before the profile could start"
        self.asked = False
        self._body: dict[str, Any] = {"num_steps": steps, **({"output_dir": folder} if folder else {})}

    async def start(self, http: HttpClient, progress: Callable[[], float]) -> None:
        """Start it once that share of the load is done; what goes wrong is kept in ``error``."""
        while progress() < START_AT:
            await asyncio.sleep(POLL_SECONDS)
        self.asked = True
        status, answer = await _ask(http, "start_profile", self._body)
        self.error = None if status == 200 else f"POST /start_profile: {answer}"
        if status == 200 and isinstance(answer, dict):
            self.trace = answer.get("trace")

    async def stop(self, http: HttpClient) -> None:
        """Stop it if it was started; returns when the trace is there."""
        if self.error is None:
            status, answer = await _ask(http, "stop_profile", {})
            if status not in (200, 409):  # 409: it has ended by itself
                self.error = f"POST /stop_profile: {answer}"


async def _ask(http: HttpClient, route: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and JSON object of an answer, or whatever else it is in words."""
    status, content = 0, b""

    def take(code: int, data: bytes) -> None:
        nonlocal status, content
        status, content = code, content + data

    try:
        await http.post(route, msgspec.json.encode(body), take)
    except asyncio.TimeoutError:
        return 0, "no answer"
    except (OSError, HttpError) as error:
        return 0, str(error)
    if status != 200:
        return status, f"{status} {error_text(content)}"
    try:
        return status, msgspec.json.decode(content)
    except msgspec.DecodeError:
        return status, content.decode(errors="replace")
