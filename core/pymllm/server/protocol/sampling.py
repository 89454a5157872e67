"""The fields that chat and text completions share."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from pydantic import Field, field_validator, model_validator

from pymllm.errors import RequestError
from pymllm.sampling import SamplingParams
from pymllm.server.protocol.base import Body, Neutral

MAX_ANSWERS = 4096
"""Most answers (prompts times n) that one HTTP request may ask for."""


class StreamOptions(Body):
    """include_usage: a last chunk without choices carries the usage."""

    unsupported: ClassVar[Neutral] = {"include_obfuscation": (False,), "continuous_usage_stats": (False,)}
    include_usage: bool = False


class GenerationBody(Body):
    """Sampling fields as OpenAI and vLLM name them; bounds are those of SamplingParams.

    request_id: names the answer, for /v1/abort; unique among open requests. cache_salt: only requests with
    the same salt share cached prefixes. priority: higher is preempted and evicted later.
    """

    informative: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
    )

    model: str = "default"
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, Any] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: Any = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    request_id: str | None = Field(default=None, min_length=1, max_length=128)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    priority: int = Field(default=0, ge=-(2**31), le=2**31 - 1)

    sampling_fields: ClassVar[tuple[str, ...]] = (
        "n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "seed", "max_tokens", "min_tokens", "stop_token_ids",
        "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
    )  # fmt: skip

    @field_validator("request_id")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        return checked_id(value)

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is only allowed when stream is true", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk that holds the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, **changes: Any) -> SamplingParams:
        """The fields as SamplingParams. Raises RequestError, naming the field, for a value out of range."""
        values = {name: getattr(self, name) for name in self.sampling_fields}
        values["logit_bias"] = token_bias(self.logit_bias)
        values["stop"] = stop_strings(self.stop)
        return SamplingParams(**{**values, **changes})


def checked_id(value: str | None) -> str | None:
    """A client's request id, which comes back in a header. Raises RequestError for other than printable ASCII."""
    if value is not None and not (value.isascii() and value.isprintable()):
        raise RequestError("must be printable ASCII")
    return value


def token_bias(bias: dict[str, Any] | None) -> dict[int, float] | None:
    """logit_bias with its keys, token ids as JSON strings, made integers. Raises RequestError."""
    if not bias:
        return None
    wrong = next((key for key in bias if not (key.isascii() and key.isdigit() and len(key) < 12)), None)
    if wrong is not None:
        raise RequestError(f"logit_bias must map token ids to numbers, and {wrong!r:.40} is no token id", "logit_bias")
    return {int(key): value for key, value in bias.items()}


def stop_strings(stop: Any) -> Any:
    """``stop`` for SamplingParams, which checks it; an empty string or list stops at nothing."""
    return None if stop in ("", []) else stop


def fill_length(params: SamplingParams, prompt: int, default: int, most: int) -> SamplingParams:
    """A protocol's default of max_tokens where the client gave none, cut to what is left of the context.

    prompt: its tokens. most: tokens that prompt and answer may have together. Raises RequestError when
    min_tokens does not fit.
    """
    if params.max_tokens is not None:
        return params
    wanted = max(default, params.min_tokens)
    return msgspec.structs.replace(params, max_tokens=max(min(wanted, most - prompt), 1))


def check_count(prompts: int, n: int, field: str) -> None:
    """Raises RequestError when one request asks for too many answers."""
    if prompts * n > MAX_ANSWERS:
        raise RequestError(
            f"{prompts} prompts with n {n} are more than {MAX_ANSWERS} answers; split the request", field
        )
