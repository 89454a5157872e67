"""Load on a running server: requests arrive as they would from many independent users (open loop).

Arrivals are a Poisson process of a given rate, or gamma distributed with a burstiness, and do not wait for
answers. All bodies are encoded before the clock starts. Times count from sending; how late the client was
itself, compared with the schedule, is measured and reported.

Fields of the summary line, beside those of :mod:`pymllm.bench.results`:

url, model, server (its /info: versions, plugins, device, or null), num_requests, request_rate (a number or
"inf"), burstiness, concurrency, dataset, input_len, output_len, seed, temperature, ignore_eos, objectives:
what was asked. Of several concurrencies, each is a line, and its seed is one more than the last one's.
warnings: what makes the figures doubtful.
duration_s: from the start until the last answer. completed, failed, errors (kind -> count).
input_tokens, output_tokens, cached_tokens (prompt tokens from the server's cache, null if it does not say),
chunks (pieces of text): of completed requests. requests_s, output_tok_s, total_tok_s: these over duration_s.
goodput_requests_s: completed requests that met every objective, over duration_s; null without objectives.
max_in_flight: most requests open at a time.
Distributions {count, mean, p50, p90, p99, min, max}, null where there is no value: ttft_s (to the first
text), itl_s (between pieces of text), tpot_s ((end - first text) / (tokens - 1)), e2e_s, client_lag_s
(arrival scheduled to arrival seen), concurrency_wait_s (held back by --concurrency).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pymllm.bench.requests import Job
from pymllm.bench.results import BenchmarkError
from pymllm.bench.streaming import Record, error_text, run_clock, stream
from pymllm.errors import ConfigError

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True)
class Target:
    """A server. base_url: with or without /v1. timeout: seconds without a byte before a request has failed."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """Raises ConfigError for what is no URL."""
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"'{self.base_url}' is no URL of a server, such as http://localhost:8000")

    @property
    def root(self) -> str:
        """The URL without /v1."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    def client_options(self) -> dict[str, Any]:
        """Arguments of an httpx client: no limit of connections, no proxies of the environment."""
        import httpx

        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return {
            "base_url": f"{self.root}/v1/",
            "headers": headers,
            "timeout": httpx.Timeout(self.timeout, connect=30),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=None),
            "trust_env": False,
        }


def find_model(target: Target) -> str:
    """The first model that the server lists. Raises ConfigError if it lists none or cannot be reached."""
    import httpx

    try:
        with httpx.Client(**target.client_options()) as http:
            answer = http.get("models")
        if answer.status_code != 200:
            raise ConfigError(f"{target.root}/v1/models answered {answer.status_code}: {error_text(answer.content)}")
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no answer from {target.base_url}: {error}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{target.root}/v1/models lists no model; give --model") from error


def server_info(target: Target) -> dict[str, Any] | None:
    """What a pymllm server says of itself; None for servers of other kinds."""
    import httpx

    try:
        with httpx.Client(**target.client_options()) as http:
            answer = http.get(f"{target.root}/info", timeout=10)
        content = answer.json() if answer.status_code == 200 else None
        return content if isinstance(content, dict) else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None


def run_load(
    target: Target,
    jobs: Sequence[Job],
    schedule: Sequence[float],
    *,
    warm_up: Sequence[Job] = (),
    concurrency: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> tuple[list[Record], float]:
    """Send every job at its time; returns their records, and the seconds until the last was answered.

    warm_up: sent first, one after another, unmeasured. concurrency: most requests open at a time.
    done: called after each request. Raises BenchmarkError if a warm-up request fails.
    """
    return asyncio.run(_run_load(target, jobs, schedule, warm_up, concurrency, done))


async def _run_load(
    target: Target,
    jobs: Sequence[Job],
    schedule: Sequence[float],
    warm_up: Sequence[Job],
    concurrency: int | None,
    done: Callable[[], None],
) -> tuple[list[Record], float]:
    import httpx

    async with httpx.AsyncClient(**target.client_options()) as http:
        for job in warm_up:
            record = Record(-1, 0.0)
            await stream(http, job, record, run_clock())
            if record.error is not None:
                raise BenchmarkError(f"the warm-up request failed ({record.error_kind}): {record.error}")
        records = [Record(index, moment) for index, moment in enumerate(schedule)]
        clock = run_clock()
        places = asyncio.Semaphore(concurrency or len(jobs) or 1)
        tasks = []
        for job, record in zip(jobs, records):
            # Even a late client lets answers be read between two arrivals.
            await asyncio.sleep(max(0.0, record.scheduled - clock()))
            record.arrived = clock()
            tasks.append(asyncio.create_task(_send(http, job, record, clock, places, done)))
        await asyncio.gather(*tasks)
        return records, clock()


async def _send(
    http: httpx.AsyncClient,
    job: Job,
    record: Record,
    clock: Callable[[], float],
    places: asyncio.Semaphore,
    done: Callable[[], None],
) -> None:
    async with places:
        await stream(http, job, record, clock)
    done()
