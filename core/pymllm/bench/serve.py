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
max_in_flight: most requests open at a time. client_cpu_share: processor time that the client used over duration_s.
profile: {trace (its path on the server's machine), error, gpus (GPU -> busy share, where the file can be read)} of
--profile, else null.
Distributions {count, mean, p50, p90, p95, p99, min, max}, null where there is no value: ttft_s (to the first
text), itl_s (between pieces of text), tpot_s ((end - first text) / (tokens - 1)), e2e_s, client_lag_s
(arrival scheduled to arrival seen), concurrency_wait_s (held back by --concurrency).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pymllm.bench.http_client import HttpClient
from pymllm.bench.requests import Job
from pymllm.bench.results import BenchmarkError
from pymllm.bench.server_profile import ServerProfile
from pymllm.bench.streaming import Record, error_text, run_clock, stream
from pymllm.errors import ConfigError


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

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **key}

    def client_options(self) -> dict[str, Any]:
        """Arguments of an httpx client: no limit of connections, no proxies of the environment."""
        import httpx

        return {
            "base_url": f"{self.root}/v1/",
            "headers": self.headers,
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


class Load(NamedTuple):
    """seconds: until the last answer. cpu_seconds: processor time that this process used meanwhile."""

    records: list[Record]
    seconds: float
    cpu_seconds: float


def run_load(
    target: Target,
    jobs: Sequence[Job],
    schedule: Sequence[float],
    *,
    warm_up: Sequence[Job] = (),
    concurrency: int | None = None,
    done: Callable[[], None] = lambda: None,
    profile: ServerProfile | None = None,
) -> Load:
    """Send every job at its time, and wait for all answers.

    warm_up: sent first, one after another, unmeasured. concurrency: most requests open at a time.
    done: called after each request. profile: taken meanwhile. Raises BenchmarkError if a warm-up request fails.
    """
    return asyncio.run(_run_load(target, jobs, schedule, warm_up, concurrency, done, profile))


async def _run_load(
    target: Target,
    jobs: Sequence[Job],
    schedule: Sequence[float],
    warm_up: Sequence[Job],
    concurrency: int | None,
    done: Callable[[], None],
    profile: ServerProfile | None,
) -> Load:
    http = HttpClient(target.root, target.headers, target.timeout)
    try:
        for job in warm_up:
            record = Record(-1, 0.0)
            await stream(http, job, record, run_clock())
            if record.error is not None:
                raise BenchmarkError(f"the warm-up request failed ({record.error_kind}): {record.error}")
        records = [Record(index, moment) for index, moment in enumerate(schedule)]
        profiling = None
        if profile is not None:
            profiling = asyncio.create_task(profile.start(http, partial(_progress, jobs, records)))
        clock, cpu = run_clock(), time.process_time()
        await _send_all(http, jobs, records, clock, concurrency, done)
        load = Load(records, clock(), time.process_time() - cpu)
        if profile is not None and profiling is not None:
            await _finish(profile, profiling, http)
        return load
    finally:
        http.close()


async def _send_all(
    http: HttpClient,
    jobs: Sequence[Job],
    records: Sequence[Record],
    clock: Callable[[], float],
    concurrency: int | None,
    done: Callable[[], None],
) -> None:
    places = asyncio.Semaphore(concurrency or len(jobs) or 1)

    async def send(job: Job, record: Record) -> None:
        async with places:
            await stream(http, job, record, clock)
        done()

    tasks = []
    for job, record in zip(jobs, records):
        # Even a late client lets answers be read between two arrivals.
        await asyncio.sleep(max(0.0, record.scheduled - clock()))
        record.arrived = clock()
        tasks.append(asyncio.create_task(send(job, record)))
    await asyncio.gather(*tasks)


def _progress(jobs: Sequence[Job], records: Sequence[Record]) -> float:
    """How much of the load is done, from 0 to 1: by answers, or by pieces of text if these say more."""
    ended = sum(record.finished is not None or record.error is not None for record in records)
    pieces = sum(record.chunks for record in records)
    return max(ended / len(jobs), pieces / sum(job.max_tokens for job in jobs))


async def _finish(profile: ServerProfile, profiling: asyncio.Task[None], http: HttpClient) -> None:
    """Stop the profile; one that has not started by now is not wanted any more."""
    if not profile.asked:
        profiling.cancel()
    await asyncio.gather(profiling, return_exceptions=True)
    await profile.stop(http)
