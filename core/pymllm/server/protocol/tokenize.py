"""POST /tokenize and /detokenize, with vLLM's fields."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import model_validator

from pymllm.errors import RequestError
from pymllm.server.protocol.base import Body, Neutral
from pymllm.server.protocol.chat import TemplateBody
from pymllm.server.protocol.prompts import as_token_ids


class TokenizeRequest(TemplateBody):
    """Text, or messages as the chat template renders them. add_special_tokens: for text, default true; the
    template writes its own, so for messages it can only be false."""

    unsupported: ClassVar[Neutral] = {"tools": ([],)}

    model: str = "default"
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", "prompt")
        if self.messages is None:
            for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
                if getattr(self, name):
                    raise RequestError(f"{name} needs messages", name)
        elif self.add_special_tokens:
            raise RequestError("add_special_tokens is not supported with messages", "add_special_tokens")
        return self


class DetokenizeRequest(Body):
    """tokens: token ids; an empty list is an empty text."""

    model: str = "default"
    tokens: Any

    @model_validator(mode="after")
    def _ids(self) -> DetokenizeRequest:
        if self.tokens != []:
            as_token_ids(self.tokens, "tokens")
        return self
