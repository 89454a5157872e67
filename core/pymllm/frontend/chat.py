"""Chat messages in, token ids out, through the checkpoint's own chat template."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pymllm.errors import RequestError
from pymllm.frontend.parts import Parts, check_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""{"role": ..., "content": text or a list of parts}, and whatever else the template reads."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def render_chat(
    tokenizer: PreTrainedTokenizerBase | None,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    parts: Parts | None = None,
) -> list[int]:
    """The token ids of a conversation, as ``tokenizer.apply_chat_template`` gives them.

    add_generation_prompt: open the assistant's turn. continue_final_message: leave the last message open
    instead, for the model to go on with. template_kwargs: variables of the template (enable_thinking, say).
    chat_template: Jinja source to use instead of the checkpoint's. parts: reads contents that are lists of parts;
    by default of a model that takes text only.
    The template alone writes the special tokens; a BOS that comes out twice is sent once.

    Raises RequestError: no tokenizer, no template, a malformed message (``field`` is its path, such as
    "messages[1].content[0]"), or a template that refuses the conversation (with its own sentence).
    """
    if tokenizer is None:
        raise RequestError("this model has no tokenizer, so it cannot chat; send token ids", "messages")
    if chat_template is None and not tokenizer.chat_template:
        raise RequestError(
            "this model has no chat template; use plain completions, or give a chat_template", "messages"
        )
    if add_generation_prompt and continue_final_message:
        raise RequestError(
            "continue_final_message cannot be combined with add_generation_prompt", "continue_final_message"
        )
    kwargs = _template_kwargs(tokenizer, template_kwargs)
    conversation = check_messages(messages, parts or Parts())
    try:
        template = tokenizer.get_chat_template(chat_template)
        text: Any = tokenizer.apply_chat_template(
            _known_roles(conversation, template),
            chat_template=template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **kwargs,
        )
    except Exception as error:  # a template is a program: whatever it raises is its answer to these messages
        raise RequestError(f"the chat template refused the messages: {_sentence(error)}", "messages") from error
    ids = list(tokenizer(check_text(text, "messages"), add_special_tokens=False, verbose=False)["input_ids"])
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def check_messages(messages: object, parts: Parts) -> list[dict[str, Any]]:
    """The messages with every content as the template takes it. Raises RequestError with the path of what is wrong."""
    if not isinstance(messages, (list, tuple)):
        raise RequestError("messages must be a list", "messages")
    if not messages:
        raise RequestError("messages must hold at least one message", "messages")
    return [_check_message(message, parts, f"messages[{index}]") for index, message in enumerate(messages)]


def _check_message(message: object, parts: Parts, path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{path} must be an object with role and content", path)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(ROLES)}, not {role!r:.60}", f"{path}.role")
    checked = dict(message)
    if checked.get("tool_calls") is None:
        checked.pop("tool_calls", None)
    else:
        checked["tool_calls"] = _tool_calls(checked["tool_calls"], f"{path}.tool_calls")
    checked["content"] = _content(checked, parts, f"{path}.content")
    return checked


def _content(message: Mapping[str, Any], parts: Parts, path: str) -> str | list[dict[str, str]]:
    """Null is the empty text where something else says what was said."""
    content = message.get("content")
    if content is None:
        if message["role"] == "assistant" and (message.get("tool_calls") or message.get("reasoning_content")):
            return ""
        raise RequestError(f"{path} must be a string or a list of parts, not null", path)
    if isinstance(content, str):
        return check_text(content, path)
    if not isinstance(content, (list, tuple)):
        raise RequestError(f"{path} must be a string or a list of parts", path)
    return parts.read(content, path)


def _tool_calls(calls: object, path: str) -> list[dict[str, Any]]:
    """Earlier calls of the assistant; templates want their arguments as an object, clients send JSON text."""
    if not isinstance(calls, (list, tuple)):
        raise RequestError(f"{path} must be a list", path)
    return [_tool_call(call, f"{path}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: object, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise RequestError(f"{path} must be an object with a function", path)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise RequestError(f"{path}.function.arguments is not valid JSON", f"{path}.function.arguments") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _template_kwargs(tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Raises RequestError for names that are not the template's, but steer the rendering itself."""
    if kwargs is None:
        return {}
    field = "chat_template_kwargs"
    if not isinstance(kwargs, Mapping):
        raise RequestError(f"{field} must be an object", field)
    reserved = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}
    for name in kwargs:
        if name in reserved:
            raise RequestError(f"{field} cannot set '{name}'", f"{field}.{name}")
    return dict(kwargs)


def _known_roles(messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """OpenAI's newer name for the system role, in the words of templates that do not know it."""
    if "developer" in template:
        return messages
    return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
