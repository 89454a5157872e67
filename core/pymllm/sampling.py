"""What a request asks of the sampler: :class:`SamplingParams`, its validation and its defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from pymllm.errors import RequestError

MAX_LOGPROBS = 100
"""Most alternatives a request may ask for per token."""

MAX_N = 128
"""Most answers a request may ask for."""


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How the answer to one prompt is drawn.

    ``None`` means "not set": the checkpoint's generation_config.json decides, then the value in brackets.

    n: answers to each prompt.
    temperature: [1.0] 0 is greedy. top_p: [1.0] in (0, 1]. top_k: [0] 0 or -1 is off. min_p: [0.0] in [0, 1].
    repetition_penalty: [1.0] > 0; divides (positive) or multiplies (negative) logits of tokens seen in the
        prompt or the answer (Keskar et al. 2019, CTRL).
    presence_penalty, frequency_penalty: [0.0] subtracted once, or per occurrence, for tokens of the answer.
    logit_bias: token id -> value added to its logit, in [-100, 100].
    seed: draws depend on it and on the position in the answer alone; None: the engine picks one.
    max_tokens: most tokens of an answer; None: until the context is full.
    min_tokens: no end token and no stop before that many.
    stop: strings that end the answer, not part of it unless include_stop_str_in_output.
    stop_token_ids: more end tokens; the end token is not part of the text. ignore_eos: the model's own do not end it.
    logprobs: None is off; N gives the chosen token's and the N likeliest tokens' log-probabilities, of the
        model itself (before temperature, penalties and bias). prompt_logprobs: the same for the prompt.
    skip_special_tokens: leave special tokens out of the text.
    """

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        """Raises RequestError, naming the field, for a value of a wrong type or out of range."""
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 1e3, open_low=True)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0, optional=False)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0, optional=False)
        _integer("seed", self.seed, -(2**63), 2**64 - 1)
        _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1, optional=False)
        _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false", name)
        self._check_collections()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}", "min_tokens")

    def _check_collections(self) -> None:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        if stop is not None and (not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop)):
            raise RequestError("stop must be a non-empty string or a list of them", "stop")
        if self.stop_token_ids is not None:
            if not isinstance(self.stop_token_ids, list):
                raise RequestError("stop_token_ids must be a list of token ids", "stop_token_ids")
            for token in self.stop_token_ids:
                _integer("stop_token_ids", token, 0, 2**31 - 1, optional=False)
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise RequestError("logit_bias must map token ids to numbers", "logit_bias")
            for token, value in self.logit_bias.items():
                _integer("logit_bias", token, 0, 2**31 - 1, optional=False)
                _number("logit_bias", value, -100.0, 100.0, optional=False)

    @property
    def stop_strings(self) -> list[str]:
        """``stop`` as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def with_defaults(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Fill what is not set from the checkpoint's generation_config.json, then from the neutral values.

        As in transformers, ``do_sample: false`` there does not make sampling greedy here: vLLM and SGLang
        take only the numbers, and so do we.
        """
        filled = {}
        for name, neutral in _NEUTRAL.items():
            if getattr(self, name) is None:
                value = defaults.get(name)
                filled[name] = neutral if value is None else type(neutral)(value)
        return msgspec.structs.replace(self, **filled)


_NEUTRAL: dict[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


def _integer(name: str, value: object, low: int, high: int, *, optional: bool = True) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {value!r:.60}", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be from {low} to {high}, not {value}", name)


def _number(
    name: str, value: object, low: float, high: float, *, optional: bool = True, open_low: bool = False
) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, not {value!r:.60}", name)
    if value > high or value < low or (open_low and value <= low):
        bound = f"above {low:g}, at most {high:g}" if open_low else f"from {low:g} to {high:g}"
        raise RequestError(f"{name} must be {bound}, not {value}", name)
