"""A request as the engine sees it: its tokens, how far they are computed, and the pages they lie in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from pymllm.engine.messages import EngineRequest, TokenLogprobs
from pymllm.interfaces.cache import CacheKey, Hit, MediaSpan

if TYPE_CHECKING:
    from pymllm.engine.sample_row import SampleRow


class Phase(Enum):
    """waiting: holds no slot and no pages. running: is prefilled or decoded. finished: holds nothing."""

    waiting = "waiting"
    running = "running"
    finished = "finished"


@dataclass(eq=False)
class Request:
    """The engine's record of one :class:`EngineRequest`.

    serial: order of arrival in this engine. seed: resolved. max_length: most tokens, prompt included.
    tokens: prompt, then the answer so far.
    computed: leading tokens whose KV is computed, or will be by a step that was already scheduled.
    settled: leading tokens whose KV is certainly there (their step has ended, or they came from the cache).
    pending: tokens that scheduled steps will sample and whose value is not known yet.
    synced_pages: leading pages that the runner knows (a runner that keeps page tables sets it).
    epoch: how often it has left the running requests; results of steps scheduled before that are void.
    pages: KV pages in order. hit: the locked part of them that belongs to the cache policy.
    """

    spec: EngineRequest
    serial: int
    seed: int
    max_length: int
    phase: Phase = Phase.waiting
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    settled: int = 0
    pending: int = 0
    epoch: int = 0
    synced_pages: int = 0
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    hit: Hit = field(default_factory=Hit)
    last_step: int = 0
    cached_tokens: int | None = None
    queue_seconds: float = -1.0
    announced: bool = False
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    chain: list[int] | None = None
    waits_for: tuple[Request, int] | None = None
    lacked_pages: int = 0
    row: SampleRow | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.spec.token_ids)
        params = self.spec.sampling
        self.end_tokens = frozenset(self.spec.eos_token_ids) | frozenset(params.stop_token_ids or ())

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.spec.token_ids)

    @property
    def length(self) -> int:
        """Tokens known or sampled by scheduled steps."""
        return len(self.tokens) + self.pending

    @property
    def remaining(self) -> int:
        """Tokens still to be computed before the next one can be sampled: 1 for a decode."""
        return self.length - self.computed

    @property
    def complete(self) -> bool:
        """Whether the steps scheduled so far bring its last token, however it ends."""
        return self.length >= self.max_length

    @property
    def output_length(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the prompt's logits are needed, so that no part of it may come from the cache."""
        return self.spec.sampling.prompt_logprobs is not None and not self.announced

    @property
    def rank(self) -> tuple[int, int]:
        """Order of service: lower is served first and preempted last."""
        return (-self.spec.priority, self.serial)

    def rotary(self, start: int, count: int, axes: int) -> np.ndarray:
        """Positions of tokens [start, start + count) for a model with several axes, [axes, count] int64."""
        index = np.broadcast_to(np.arange(start, start + count), (axes, count))
        if not self.spec.positions:
            return index + self.spec.position_delta
        known = np.frombuffer(self.spec.positions, dtype="<i4").reshape(axes, -1)
        part = known[:, start : start + count]
        if part.shape[1] == count:
            return part.astype(np.int64)
        return np.concatenate([part, index[:, part.shape[1] :] + self.spec.position_delta], axis=1)

    def key(self, length: int) -> CacheKey:
        """The cache key of the first ``length`` tokens."""
        media = tuple(MediaSpan(m.start, m.length, m.digest) for m in self.spec.media if m.start < length)
        return CacheKey(self.tokens[:length], media, self.spec.namespace)
