"""POST /generate, named and shaped as SGLang's, and POST /v1/abort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from pymllm.errors import RequestError
from pymllm.frontend.generation import Prompt
from pymllm.media import ImageReference, Reference, VideoReference
from pymllm.sampling import SamplingParams
from pymllm.server.protocol.base import Body, Neutral, parse, renamed
from pymllm.server.protocol.media import media_of
from pymllm.server.protocol.prompts import as_prompts, as_token_ids
from pymllm.server.protocol.sampling import check_count, checked_id, stop_strings, token_bias

DEFAULT_MAX_TOKENS = 128
"""SGLang's default of max_new_tokens."""


class NativeSampling(Body):
    """``sampling_params`` of one prompt. no_stop_trim: keep the stop string in the text."""

    unsupported: ClassVar[Neutral] = {
        "regex": (),
        "ebnf": (),
        "json_schema": (),
        "structural_tag": (),
        "stop_regex": (),
        "custom_params": (),
        "spaces_between_special_tokens": (True,),
        "stream_interval": (1,),
    }
    names: ClassVar[Mapping[str, str]] = {
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "seed": "sampling_seed",
        "include_stop_str_in_output": "no_stop_trim",
    }

    n: int = 1
    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, Any] | None = None
    sampling_seed: int | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False

    def params(self, logprobs: int | None, prompt_logprobs: int | None) -> SamplingParams:
        """As SamplingParams. Raises RequestError in this protocol's names."""
        values = self.model_dump()
        for ours, theirs in self.names.items():
            values[ours] = values.pop(theirs)
        values["logit_bias"] = token_bias(self.logit_bias)
        values["stop"] = stop_strings(self.stop)
        try:
            return SamplingParams(**values, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
        except RequestError as error:
            raise renamed(error, self.names) from None


class GenerateRequest(Body):
    """The body of /generate: one prompt or a batch.

    text or input_ids: the prompts. image_data, video_data: a URL, a data: URL or a path, or several, for each of which
    the prompt holds a placeholder token; of a batch, a list with an entry (or null) for each prompt.
    rid: id of the request (a batch's members are RID-0, RID-1 ...).
    logprob_start_len: with return_logprob, prompt log-probabilities from this position on; -1 is none.
    """

    unsupported: ClassVar[Neutral] = {
        "audio_data": ([],),
        "input_embeds": (),
        "lora_path": (),
        "token_ids_logprob": ([],),
        "return_hidden_states": (False,),
        "session_params": (),
        "custom_logit_processor": (),
    }

    model: str = "default"
    text: Any = None
    input_ids: Any = None
    image_data: Any = None
    video_data: Any = None
    sampling_params: Any = None
    rid: str | None = Field(default=None, min_length=1, max_length=128)
    stream: bool = False
    return_logprob: bool = False
    top_logprobs_num: int = Field(default=0, ge=0)
    logprob_start_len: int = Field(default=-1, ge=-1)
    return_text_in_logprobs: bool = False
    priority: int = Field(default=0, ge=-(2**31), le=2**31 - 1)

    @model_validator(mode="after")
    def _consistent(self) -> GenerateRequest:
        if (self.text is None) == (self.input_ids is None):
            raise RequestError("give either text or input_ids", "text")
        if self.top_logprobs_num and not self.return_logprob:
            raise RequestError("top_logprobs_num needs return_logprob", "top_logprobs_num")
        if self.logprob_start_len != -1 and not self.return_logprob:
            raise RequestError("logprob_start_len needs return_logprob", "logprob_start_len")
        try:
            checked_id(self.rid)
        except RequestError as error:
            raise RequestError(str(error), "rid") from None
        self.references()
        return self

    @property
    def batched(self) -> bool:
        """Whether the answer is a list."""
        given = self.input_ids if self.text is None else self.text
        return isinstance(given, list) and (self.text is not None or isinstance(given[0], list))

    def prompts(self) -> list[Prompt]:
        """One entry per prompt. Raises RequestError."""
        if self.text is None:
            value = self.input_ids
            return as_prompts(value, "input_ids") if _nested(value) else [as_token_ids(value, "input_ids")]
        if isinstance(self.text, list) and not all(isinstance(one, str) for one in self.text):
            raise RequestError("text must be a string or a list of strings", "text")
        return as_prompts(self.text, "text")

    def references(self) -> list[list[Reference]]:
        """One list per prompt. Raises RequestError."""
        count = len(self.prompts())
        found: list[list[Reference]] = [[] for _ in range(count)]
        for field, kind in (("image_data", ImageReference), ("video_data", VideoReference)):
            for references, more in zip(found, media_of(getattr(self, field), field, kind, self.batched, count)):
                references += more
        return found

    def params(self) -> list[SamplingParams]:
        """One per prompt. Raises RequestError that names the field."""
        count = len(self.prompts())
        raw = self.sampling_params
        if not isinstance(raw, list):
            found = [self._params(raw, "sampling_params")] * count
        elif len(raw) != count:
            raise RequestError(f"{len(raw)} sampling_params for {count} prompts", "sampling_params")
        else:
            found = [self._params(one, f"sampling_params[{i}]") for i, one in enumerate(raw)]
        check_count(sum(one.n for one in found), 1, "sampling_params")
        return found

    def _params(self, raw: Any, path: str) -> SamplingParams:
        logprobs = self.top_logprobs_num if self.return_logprob else None
        prompt_logprobs = logprobs if self.logprob_start_len >= 0 else None
        try:
            return parse(NativeSampling, {} if raw is None else raw).params(logprobs, prompt_logprobs)
        except RequestError as error:
            if error.field == "logprobs":
                raise renamed(error, {"logprobs": "top_logprobs_num"}) from None
            raise RequestError(f"{path}: {error}", f"{path}.{error.field}" if error.field else path) from None


def _nested(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


class AbortRequest(Body):
    """Which answer to end, under any of the usual names; abort_all ends every open one."""

    id: str | None = None
    request_id: str | None = None
    rid: str | None = None
    abort_all: bool = False

    @model_validator(mode="after")
    def _names_one(self) -> AbortRequest:
        given = [name for name in (self.id, self.request_id, self.rid) if name]
        if len(given) + self.abort_all != 1:
            raise RequestError("give one of id, request_id, rid and abort_all", "id")
        return self

    @property
    def target(self) -> str | None:
        """The id, or None for all."""
        return self.id or self.request_id or self.rid
