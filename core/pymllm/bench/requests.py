"""What a server is asked: random token ids, or the lines of a file; encoded before the clock starts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pymllm.bench.workload import Lengths, offline_workload
from pymllm.errors import ConfigError

COMPLETIONS, CHAT = "completions", "chat/completions"

PROMPTS: Mapping[str, str] = {"prompt": COMPLETIONS, "prompt_token_ids": COMPLETIONS, "messages": CHAT}
"""Key of a dataset line -> the route, under /v1/, that takes it."""

GREETING_TOKENS = 16


@dataclass(frozen=True)
class Body:
    """What all requests have in common. ignore_eos: go on to max_tokens (servers other than OpenAI's)."""

    model: str
    temperature: float
    ignore_eos: bool

    def encode(self, prompt: Mapping[str, Any], max_tokens: int) -> bytes:
        """A streamed request. prompt: {"prompt": text or ids} or {"messages": [...]}."""
        body: dict[str, Any] = {
            "model": self.model,
            **prompt,
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body)


@dataclass(frozen=True)
class Job:
    """A request that is ready to be sent to /v1/``route``. max_tokens: most tokens of its answer."""

    route: str
    content: bytes
    max_tokens: int


def random_jobs(body: Body, count: int, inputs: Lengths, outputs: Lengths, seed: float, vocab_size: int) -> list[Job]:
    """Completions of random token ids below ``vocab_size``."""
    work = offline_workload(count, inputs, outputs, seed, vocab_size)
    return [Job(COMPLETIONS, body.encode({"prompt": one.prompt}, one.max_tokens), one.max_tokens) for one in work]


def dataset_jobs(body: Body, lines: list[dict[str, Any]], count: int, outputs: Lengths, seed: int) -> list[Job]:
    """The lines in order, again from the start when there are too few. A line without ``max_tokens`` gets a
    random answer length."""
    rng = random.Random(seed)
    jobs = []
    for index in range(count):
        line = lines[index % len(lines)]
        key = prompt_key(line)
        name = "messages" if key == "messages" else "prompt"
        max_tokens = line.get("max_tokens") or rng.randint(outputs.least, outputs.most)
        jobs.append(Job(PROMPTS[key], body.encode({name: line[key]}, max_tokens), max_tokens))
    return jobs


def greeting_jobs(body: Body, route: str, count: int) -> list[Job]:
    """Short requests to a route, to warm it up."""
    prompt = {"messages": [{"role": "user", "content": "Hello"}]} if route == CHAT else {"prompt": "Hello"}
    return [Job(route, body.encode(prompt, GREETING_TOKENS), GREETING_TOKENS)] * count


def read_dataset(path: Path) -> list[dict[str, Any]]:
    """JSON lines, each with "prompt" (text or token ids), "prompt_token_ids" or "messages", and "max_tokens"
    if wanted. Raises ConfigError that names the line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--dataset '{path}' cannot be read: {error.strerror}") from error
    lines = []
    for number, text in enumerate(content.splitlines(), 1):
        if text.strip():
            lines.append(_line(text, f"--dataset '{path}', line {number}"))
    if not lines:
        raise ConfigError(f"--dataset '{path}' holds no line")
    return lines


def prompt_key(line: Mapping[str, Any]) -> str:
    """Which of PROMPTS a line has. Raises ConfigError unless it is exactly one."""
    keys = [key for key in PROMPTS if key in line]
    if len(keys) != 1:
        raise ConfigError(f"a line must hold one of {', '.join(PROMPTS)}")
    return keys[0]


def _line(text: bytes, where: str) -> dict[str, Any]:
    try:
        line = msgspec.json.decode(text, type=dict[str, Any])
        prompt_key(line)
    except (msgspec.DecodeError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from error
    limit = line.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigError(f"{where}: max_tokens must be a positive integer")
    return line


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """When each request arrives, seconds from the start, the first at 0.

    The gaps are gamma distributed with shape ``burstiness`` and mean 1 / rate: 1 is a Poisson process, less is
    burstier, more is steadier. An infinite rate lets all arrive at once.
    """
    if rate == float("inf"):
        return [0.0] * count
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), count - 1)
    return [0.0, *np.cumsum(gaps).tolist()]
