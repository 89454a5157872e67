"""Who answers in a terminal chat: a model in this process, or a server that speaks OpenAI's protocol."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pymllm.errors import ConfigError, PymllmError, RequestError
from pymllm.sampling import SamplingParams

if TYPE_CHECKING:
    import httpx

    from pymllm.config import Config

Messages = Sequence[Mapping[str, Any]]


class ChatError(PymllmError):
    """An answer that failed; the chat goes on."""


@dataclass(frozen=True)
class Piece:
    """News of an answer. tokens: how many new ones, as far as is known. cached, prompt: once, prompt tokens."""

    text: str = ""
    tokens: int = 0
    prompt: int | None = None
    cached: int | None = None
    total: int | None = None


class ChatBackend(ABC):
    """name: the model's, for the greeting."""

    name: str

    @abstractmethod
    def reply(self, messages: Messages, params: SamplingParams) -> Iterator[Piece]:
        """The answer, piece by piece. Closing the iterator aborts it. Raises PymllmError."""

    @abstractmethod
    def close(self) -> None:
        """Free the model, or the connection."""


class LocalBackend(ChatBackend):
    """The model of a configuration, loaded here."""

    def __init__(self, config: Config, *, progress: bool) -> None:
        """Raises PymllmError, also for a model that cannot chat."""
        from pymllm.llm import LLM
        from pymllm.server.state import served_name

        self._llm = LLM.from_config(config, progress=progress)
        self.name = served_name(self._llm.frontend.model_name, config.server.model_name)
        try:
            self._llm.read_chat([{"role": "user", "content": "hello"}])
        except RequestError:
            self.close()
            raise

    def reply(self, messages: Messages, params: SamplingParams) -> Iterator[Piece]:
        prompt = self._llm.read_chat(messages)
        yield Piece(prompt=len(prompt.token_ids))
        with closing(self._llm.stream(prompt, params)) as deltas:
            for index, delta in enumerate(deltas):
                if delta.error is not None:
                    raise ChatError(delta.error)
                yield Piece(delta.text, len(delta.token_ids), cached=delta.cached_tokens if index == 0 else None)

    def close(self) -> None:
        self._llm.close()


class RemoteBackend(ChatBackend):
    """A server at ``http://host:port`` or ``http://host:port/v1``."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        """Asks the server for its models. Raises ConfigError if it cannot be used."""
        import httpx

        base = url.rstrip("/").removesuffix("/v1") + "/v1/"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=base, headers=headers, timeout=httpx.Timeout(600, connect=10))
        try:
            names = self._models(url)
            if model is not None and model not in names:
                raise ConfigError(f"{url} does not serve '{model}', but {', '.join(names)}")
            if not names:
                raise ConfigError(f"{url} serves no model")
        except BaseException:
            self.close()
            raise
        self.name = model or names[0]

    def _models(self, url: str) -> list[str]:
        import httpx

        try:
            answer = self._http.get("models")
            if answer.status_code in (401, 403):
                raise ConfigError(f"{url} wants an API key; give --api-key or set PYMLLM_API_KEY")
            answer.raise_for_status()
            return [str(model["id"]) for model in answer.json()["data"]]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(f"no answer from {url}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{url} does not speak OpenAI's protocol: /v1/models is no list of models") from error

    def reply(self, messages: Messages, params: SamplingParams) -> Iterator[Piece]:
        import httpx

        body = {
            "model": self.name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **msgspec.to_builtins(params, str_keys=True),
        }
        try:
            with self._http.stream("POST", "chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise ChatError(_error_of(response))
                yield from _pieces(response)
        except httpx.HTTPError as error:
            raise ChatError(f"the connection failed: {error}") from error

    def close(self) -> None:
        self._http.close()


def _pieces(response: httpx.Response) -> Iterator[Piece]:
    """The server-sent events of a streamed answer. Each chunk with text counts as one token until the
    usage, at the end, tells the truth."""
    for line in _lines(response):
        name, _, data = line.partition(":")
        data = data.strip()
        if name != "data" or data == "[DONE]":
            continue
        try:
            event = json.loads(data)
        except ValueError as error:
            raise ChatError(f"the server sent an event that is not JSON: {data:.80}") from error
        if "error" in event:
            raise ChatError(str(event["error"].get("message", event["error"])))
        for choice in event.get("choices") or ():
            text = (choice.get("delta") or {}).get("content") or ""
            if text:
                yield Piece(text, 1)
        if usage := event.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            yield Piece(
                prompt=usage.get("prompt_tokens"),
                cached=details.get("cached_tokens"),
                total=usage.get("completion_tokens"),
            )


def _lines(response: httpx.Response) -> Iterator[str]:
    """Lines that end with a line feed. httpx's ``iter_lines`` also ends them at U+2028 and the like, which may
    stand inside an event's JSON."""
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode()
    yield rest.decode()


def _error_of(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code}"


def api_key_of(given: str | None) -> str | None:
    """The key to send: as given, else from the environment (it is a secret)."""
    return given or os.environ.get("PYMLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")
