"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from pymllm.errors import RequestError
from pymllm.sampling import SamplingParams
from pymllm.server.protocol.base import Body, Neutral
from pymllm.server.protocol.sampling import GenerationBody

_NONE: tuple[Any, ...] = ()


class Message(Body):
    """One message. The frontend, which knows whether the model takes images, reads its parts."""

    unsupported: ClassVar[Neutral] = {
        "tool_calls": ([],),
        "tool_call_id": _NONE,
        "function_call": _NONE,
        "audio": _NONE,
        "refusal": ("",),
        "annotations": ([],),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: Any = None
    name: str | None = None
    reasoning_content: str | None = None

    @field_validator("content")
    @classmethod
    def _text_or_parts(cls, content: Any) -> Any:
        if content is None or isinstance(content, (str, list)):
            return content
        raise RequestError("must be a string or a list of parts")

    def for_template(self) -> dict[str, Any]:
        """As the frontend takes it; it checks which roles need content."""
        given = {"role": self.role, "content": self.content}
        optional = {"name": self.name, "reasoning_content": self.reasoning_content}
        return given | {key: value for key, value in optional.items() if value is not None}


class TemplateBody(Body):
    """How messages become tokens. add_generation_prompt: default true, unless the final message is continued."""

    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_ending(self) -> TemplateBody:
        if self.messages is not None and not self.messages:
            raise RequestError("messages must not be empty", "messages")
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
            )
        return self

    def template_arguments(self) -> dict[str, Any]:
        """Keyword arguments of ``Frontend.read_chat``."""
        generation = not self.continue_final_message
        if self.add_generation_prompt is not None:
            generation = self.add_generation_prompt
        return {
            "add_generation_prompt": generation,
            "continue_final_message": self.continue_final_message,
            "template_kwargs": self.chat_template_kwargs,
        }

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as chat templates read them."""
        return [message.for_template() for message in self.messages or ()]


class ChatRequest(GenerationBody, TemplateBody):
    """The body of a chat completion. max_completion_tokens is the newer name of max_tokens."""

    unsupported: ClassVar[Neutral] = {
        "tools": ([],),
        "tool_choice": ("none",),
        "functions": ([],),
        "function_call": ("none",),
        "response_format": ({"type": "text"},),
        "audio": _NONE,
        "modalities": (["text"],),
        "moderation": _NONE,
        "prediction": _NONE,
        "prompt_cache_options": _NONE,
        "prompt_cache_retention": ("in_memory",),
        "reasoning_effort": _NONE,
        "verbosity": _NONE,
        "web_search_options": _NONE,
    }

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise RequestError("max_completion_tokens and max_tokens differ; give one", "max_completion_tokens")
        return self

    def renames(self) -> Mapping[str, str]:
        names = {"logprobs": "top_logprobs", "prompt": "messages"}
        if self.max_tokens is None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    def params(self) -> SamplingParams:
        """What the sampler is asked for. Raises RequestError that names the field."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self.sampling(max_tokens=limit, logprobs=(self.top_logprobs or 0) if self.logprobs else None)
