"""Prompts of requests, tokenized in threads, their media loaded: ready for the engine."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.frontend.frontend import Frontend
from pymllm.frontend.generation import PlacedPrompt, Prompt, UnplacedPrompt
from pymllm.media import Reference
from pymllm.server.protocol.chat import TemplateBody
from pymllm.server.state import ServerState


async def read_chat(state: ServerState, frontend: Frontend, body: TemplateBody) -> PlacedPrompt:
    """The prompt of a conversation. Raises RequestError."""
    prompt = await state.in_thread(frontend.read_chat, body.template_messages(), **body.template_arguments())
    return await frontend.place(prompt)


async def read_prompts(
    state: ServerState, frontend: Frontend, prompts: list[Prompt], references: Sequence[Sequence[Reference]]
) -> list[PlacedPrompt]:
    """Text prompts, with the media of each. Raises RequestError."""
    every = await state.in_thread(_tokenize, frontend, prompts)
    return [await frontend.place(UnplacedPrompt(ids, media)) for ids, media in zip(every, references)]


def _tokenize(frontend: Frontend, prompts: list[Prompt]) -> list[list[int]]:
    return [one if isinstance(one, list) else frontend.encode(one) for one in prompts]
