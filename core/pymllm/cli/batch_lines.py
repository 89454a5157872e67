"""Lines of a batch file: what one asks, and the line that answers it.

A line is {"prompt": text}, {"messages": [...]} or {"prompt_token_ids": [...]}, with sampling fields and an
"id" (or "custom_id") if wanted; or OpenAI's batch form, {"custom_id", "method", "url", "body"}.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pymllm.errors import RequestError
from pymllm.sampling import SamplingParams
from pymllm.spelling import did_you_mean

if TYPE_CHECKING:
    from pymllm.frontend.frontend import Prepared
    from pymllm.frontend.generation import Delta, UnplacedPrompt
    from pymllm.llm import LLM
    from pymllm.server.collect import Usage, Whole
    from pymllm.server.token_text import TokenTexts

CHAT_URL = "/v1/chat/completions"
PROMPTS = ("prompt", "messages", "prompt_token_ids")
TEMPLATE = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
NAMES = ("id", "custom_id")
PLAIN = (*NAMES, *PROMPTS, *TEMPLATE, *SamplingParams.__struct_fields__)
"""Keys of a line in our form."""
OPENAI = ("custom_id", "method", "url", "body")
"""Keys of a line in OpenAI's form."""


@dataclass
class Task:
    """A line that can be answered. tokens: of its prompt. render: makes the answer of the finished task."""

    tokens: int
    params: SamplingParams
    render: Callable[[Task], dict[str, Any]]
    wholes: list[Whole] = field(init=False)
    usage: Usage = field(init=False)
    error: str | None = None

    def __post_init__(self) -> None:
        from pymllm.server.collect import Usage, Whole

        self.wholes = [Whole() for _ in range(self.params.n)]
        self.usage = Usage(self.tokens)

    def add(self, delta: Delta) -> None:
        """Take in news."""
        whole = self.wholes[delta.index]
        self.usage.add(0, delta, first=not whole.started)
        whole.add(delta)
        self.error = self.error or delta.error

    @property
    def finished(self) -> bool:
        """Whether all answers have ended."""
        return all(whole.finish_reason is not None for whole in self.wholes)


class LineReader:
    """Turns lines into tasks for one model."""

    def __init__(self, llm: LLM, model_name: str, texts: TokenTexts, options: Mapping[str, Any]) -> None:
        """model_name: in answers of OpenAI's form. options: sampling fields for lines that do not set them."""
        self._llm = llm
        self._frontend = llm.frontend
        self._model_name = model_name
        self._texts = texts
        self._options = dict(options)

    def read(self, content: dict[str, Any]) -> tuple[Task, Prepared]:
        """A line's task, and its prompt, ready to be started. Raises RequestError, naming the field, for a line that
        cannot be answered."""
        return self._read_openai(content) if _is_openai(content) else self._read_plain(content)

    def _task(
        self, prompt: list[int] | UnplacedPrompt, params: SamplingParams, render: Callable[[Task], dict[str, Any]]
    ) -> tuple[Task, Prepared]:
        placed = prompt if isinstance(prompt, list) else self._llm.place(prompt)
        prepared = self._frontend.prepare(placed, params)
        return Task(len(prepared.token_ids), params, render), prepared

    def _read_plain(self, content: dict[str, Any]) -> tuple[Task, Prepared]:
        _check_keys(content, PLAIN)
        rest = {key: value for key, value in content.items() if key not in NAMES}
        kinds = [key for key in PROMPTS if key in rest]
        if len(kinds) != 1:
            raise RequestError(f"a line must hold one of {', '.join(PROMPTS)}, or an OpenAI batch request")
        prompt = rest.pop(kinds[0])
        template = {key: rest.pop(key) for key in TEMPLATE if key in rest}
        if template and kinds[0] != "messages":
            raise RequestError(f"{next(iter(template))} has an effect only with messages", next(iter(template)))
        params = self._params(rest)
        ids = prompt
        if kinds[0] == "prompt":
            ids = self._frontend.encode(prompt)
        elif kinds[0] == "messages":
            template["template_kwargs"] = template.pop("chat_template_kwargs", None)
            if template.get("continue_final_message"):
                template.setdefault("add_generation_prompt", False)
            ids = self._frontend.read_chat(prompt, **template)
        elif not isinstance(ids, list):
            raise RequestError("prompt_token_ids must be a list of token ids", "prompt_token_ids")
        return self._task(ids, params, lambda task: _plain(task, spelled=kinds[0] != "prompt_token_ids"))

    def _params(self, fields: dict[str, Any]) -> SamplingParams:
        from pymllm.server.protocol.sampling import token_bias

        if isinstance(fields.get("logit_bias"), dict):
            fields["logit_bias"] = token_bias(fields["logit_bias"])
        return SamplingParams(**{**self._options, **fields})

    def _read_openai(self, content: dict[str, Any]) -> tuple[Task, Prepared]:
        from pymllm.server.protocol.base import parse
        from pymllm.server.protocol.chat import ChatRequest

        _check_keys(content, OPENAI)
        if content.get("url") != CHAT_URL or content.get("method", "POST") != "POST":
            raise RequestError(f"a batch request must be a POST to {CHAT_URL}", "url")
        raw = content.get("body")
        if isinstance(raw, dict):
            spelled = raw.get("max_tokens") is not None or raw.get("max_completion_tokens") is not None
            raw = {**{k: v for k, v in self._options.items() if k != "max_tokens" or not spelled}, **raw}
        body = parse(ChatRequest, raw)
        if body.stream:
            raise RequestError("a batch request cannot be streamed", "stream")
        prompt = self._frontend.read_chat(body.template_messages(), **body.template_arguments())
        custom_id = content.get("custom_id")
        return self._task(prompt, body.params(), lambda task: self._openai(task, custom_id, body.logprobs))

    def _openai(self, task: Task, custom_id: object, logprobs: bool) -> dict[str, Any]:
        from pymllm.server.collect import Collected
        from pymllm.server.render.chat import chat_completion

        found = Collected([task.wholes], [None], task.usage)
        id = uuid.uuid4().hex
        body = chat_completion(f"chatcmpl-{id}", self._model_name, found, self._texts, logprobs=logprobs)
        response = {"status_code": 200, "request_id": id, "body": body}
        return {"id": f"batch_req_{id}", "custom_id": custom_id, "response": response, "error": None}


def parse_line(line: bytes) -> dict[str, Any]:
    """A line's JSON object. Raises RequestError."""
    try:
        content = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise RequestError("a line must be a JSON object")
    return content


def _is_openai(content: Mapping[str, Any]) -> bool:
    return any(key in content for key in OPENAI if key != "custom_id")


def _check_keys(content: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises RequestError that names the first unknown key."""
    for key in content:
        if key not in known:
            raise RequestError(f"unknown field '{key:.100}'.{did_you_mean(key, known)}".rstrip("."), key)


def name_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """The id of a line, under the name it has there."""
    return {key: content[key] for key in NAMES if key in content}


def error_line(content: Mapping[str, Any], number: int, message: str) -> dict[str, Any]:
    """The answer to line ``number`` (from 1) that could not be answered."""
    if _is_openai(content):
        error = {"code": "invalid_request", "message": message, "line": number}
        return {"id": None, **name_of(content), "response": None, "error": error}
    return {**name_of(content), "error": message, "line": number}


def _plain(task: Task, *, spelled: bool) -> dict[str, Any]:
    """spelled: the prompt was text, so the answer is too; otherwise its token ids are shown as well."""
    choices = [_choice(index, whole, task.params, spelled) for index, whole in enumerate(task.wholes)]
    answer = {key: value for key, value in choices[0].items() if key != "index"}
    if len(choices) > 1:
        answer = {"outputs": choices}
    return {**answer, "usage": task.usage.as_openai()}


def _choice(index: int, whole: Whole, params: SamplingParams, spelled: bool) -> dict[str, Any]:
    from pymllm.outputs import merged
    from pymllm.server.render.logprobs import finite

    choice: dict[str, Any] = {"index": index, "text": whole.text}
    if not spelled:
        choice["token_ids"] = whole.token_ids
    choice["finish_reason"] = whole.finish_reason
    choice["stop_reason"] = whole.stop_reason
    if params.logprobs is not None:
        choice["logprobs"] = [
            {str(other): finite(value) for other, value in merged(token, entry).items()}
            for token, entry in zip(whole.token_ids, whole.logprobs)
        ]
    return choice
