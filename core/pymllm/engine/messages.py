"""What passes between an engine client and an engine: plain msgspec structs, one message a step."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from pymllm.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class MediaInput(msgspec.Struct, frozen=True):
    """An image or video of a request, for the model to encode: a :class:`pymllm.interfaces.ProcessedMedia` on its way.

    digest: of content and settings; equal ones have equal features. grid: patches. shape, pixels: uint8 [F, H, W, 3]
    and its bytes. tokens: feature rows.
    """

    kind: Literal["image", "video"]
    digest: bytes
    grid: tuple[int, int, int]
    shape: tuple[int, int, int, int]
    pixels: bytes
    tokens: int


class Media(msgspec.Struct, frozen=True):
    """Tokens [start, start + length) stand for the feature rows [first, first + length) of input ``item``.

    digest: of the input and ``first``, for cache keys (``MediaRun.span``).
    """

    start: int
    length: int
    digest: bytes
    item: int = 0
    first: int = 0


class EngineRequest(msgspec.Struct, kw_only=True, dict=True):
    """One prompt to continue once (``n`` was fanned out before).

    id: unique among open requests. sampling: with defaults filled. eos_token_ids: end tokens that
    ``ignore_eos`` switches off (already empty if it is set; sampling.stop_token_ids stay apart).
    namespace: part of the cache key. priority: higher is preempted and evicted later.
    arrival: time.monotonic() at the door, seconds.
    media: runs of tokens that stand for the rows of ``inputs``, in order, none overlapping. positions: int32 [axes, T],
    its bytes, where the model has several axes and the tokens' numbers do not say (``Placed.positions``), else empty.
    position_delta: the position of an answer's token is its index plus this.
    """

    id: str
    token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: list[int] = []
    media: list[Media] = []
    inputs: list[MediaInput] = []
    positions: bytes = b""
    position_delta: int = 0
    namespace: str = ""
    priority: int = 0
    arrival: float = 0.0

    @cached_property
    def ids(self) -> np.ndarray:
        """token_ids, [T] int64. Made once where it is used; it is not sent."""
        return np.fromiter(self.token_ids, np.int64, len(self.token_ids))


class TokenLogprobs(msgspec.Struct):
    """logprob: of the token itself; top: token id -> log-probability of the likeliest, best first."""

    logprob: float
    top: dict[int, float]


class TokenOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a step brought for one request.

    token_ids: new tokens (an end token included). logprobs: one per new token, if asked for.
    prompt_logprobs: once, with the first token: one per prompt token, None for the first.
    finish_reason: set on the last output of a request. stop_token: the end token that stopped it.
    cached_tokens: prompt tokens taken from the prefix cache. queue_seconds: from arrival to first being
    scheduled; both on the first output. error: a sentence, with finish_reason "error".
    """

    id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    error: str | None = None


class EngineStats(msgspec.Struct, kw_only=True):
    """A snapshot, sent with every step. Counts of requests and pages now; ``total_*`` since the start."""

    running: int = 0
    waiting: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    total_steps: int = 0
    total_prompt_tokens: int = 0
    total_cached_tokens: int = 0
    total_generated_tokens: int = 0
    total_preemptions: int = 0
    total_evicted_pages: int = 0


class ProfileRequest(msgspec.Struct, kw_only=True):
    """What to profile. folder: of the trace, absolute, on the engine's machine. steps: how many, then the profile
    ends by itself; None: until it is stopped. stacks: record every Python function too."""

    folder: str
    steps: int | None = None
    stacks: bool = False


class Profile(msgspec.Struct, kw_only=True):
    """A profile. path: of its trace, which is there once the profile has ended. steps: recorded so far."""

    path: str
    steps: int = 0


class PluginChoice(msgspec.Struct, kw_only=True):
    """Which plugin serves a kind, and why it was chosen."""

    kind: str
    name: str
    distribution: str
    version: str
    reason: str


class EngineInfo(msgspec.Struct, kw_only=True):
    """Facts of a started engine. Sizes in tokens, pages and bytes.

    max_context: most tokens of prompt and answer together. capacity_tokens: of the whole KV pool; one
    request can use at most ``max_request_tokens``. dtype: of activations. kv_dtype: of the KV pool, a dtype or
    "fp8", "int8", "int4". step_peak_bytes: of a worst-case step. graph_bytes: what CUDA graphs were foreseen to take.
    max_media_tokens: feature rows that an image or video may have; 0: the model takes none.
    """

    model: str
    architecture: str
    dtype: str
    kv_dtype: str
    device: str
    vocab_size: int
    max_context: int
    max_request_tokens: int
    capacity_tokens: int
    page_size: int
    pages: int
    page_bytes: int
    weight_bytes: int
    step_peak_bytes: int
    max_batch_tokens: int
    max_running_requests: int
    parameters: int
    choices: list[PluginChoice]
    graph_bytes: int = 0
    max_media_tokens: int = 0
