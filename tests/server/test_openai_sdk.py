"""The openai Python SDK works against the server unchanged: sync, async and streaming."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "on the way to the other one"}]


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_a_chat_completion_has_the_fields_the_sdk_knows(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="default", messages=MESSAGES, max_tokens=7, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny"
    assert [choice.index for choice in answer.choices] == [0]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    # ChatML around the words: <|im_start|>user\n ... <|im_end|>\n<|im_start|>assistant\n, counted by the tokenizer
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_a_stream_says_what_the_whole_answer_says(sdk: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "temperature": 0}
    whole = sdk.chat.completions.create(**arguments)
    chunks = list(sdk.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}
    assert len({chunk.id for chunk in chunks}) == 1
    assert whole.usage is not None
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_is_not_streamed_unless_asked_for(sdk: openai.OpenAI) -> None:
    chunks = list(sdk.chat.completions.create(model="default", messages=MESSAGES, max_tokens=3, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_several_answers_are_interleaved_by_index(sdk: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"model": "default", "messages": MESSAGES, "max_tokens": 12, "seed": 5, "n": 3}
    whole = sdk.chat.completions.create(**arguments)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = ["", "", ""]
    roles = [0, 0, 0]
    for chunk in sdk.chat.completions.create(**arguments, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role is not None
    assert texts == [choice.message.content for choice in whole.choices]
    assert roles == [1, 1, 1]
    assert len(set(texts)) > 1


def test_the_async_client_runs_many_at_once(server: Any) -> None:
    async def ask() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:

            async def one(i: int) -> tuple[str, str]:
                arguments: Any = {"model": "default", "messages": [{"role": "user", "content": f"the {i}"}],
                                  "max_tokens": 10, "temperature": 0}  # fmt: skip
                stream = await client.chat.completions.create(**arguments, stream=True)
                streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
                whole = await client.chat.completions.create(**arguments)
                return streamed, whole.choices[0].message.content or ""

            return await asyncio.gather(*(one(i) for i in range(8)))

    for streamed, whole in asyncio.run(ask()):
        assert streamed == whole


def test_text_completions(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="default", prompt=["the", "and"], max_tokens=5, temperature=0, echo=True)
    assert answer.object == "text_completion"
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("the")
    assert answer.choices[1].text.startswith("and")
    stream = sdk.completions.create(model="default", prompt="the", max_tokens=5, temperature=0, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["tiny"]
    assert sdk.models.retrieve("tiny").owned_by == "pymllm"
    assert sdk.models.retrieve("default").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("other")


def test_errors_are_the_sdks_own(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as tools:
        sdk.chat.completions.create(
            model="default", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert tools.value.param == "tools"


def test_extra_body_reaches_the_sampler_and_the_template(sdk: openai.OpenAI) -> None:
    extra = {"top_k": 1, "chat_template_kwargs": {"enable_thinking": False}, "cache_salt": "tenant"}
    greedy = sdk.chat.completions.create(model="default", messages=MESSAGES, max_tokens=9, temperature=0)
    narrow = sdk.chat.completions.create(
        model="default", messages=MESSAGES, max_tokens=9, temperature=2.0, extra_body=extra
    )
    assert narrow.choices[0].message.content == greedy.choices[0].message.content


def test_informative_fields_are_accepted(sdk: openai.OpenAI) -> None:
    sdk.chat.completions.create(
        model="default", messages=MESSAGES, max_tokens=1, user="me", metadata={"a": "b"}, store=False,
        service_tier="auto", safety_identifier="x", prompt_cache_key="k", parallel_tool_calls=True,
        response_format={"type": "text"}, tool_choice="none", modalities=["text"],
    )  # fmt: skip


def test_an_answer_can_be_sent_back_as_the_sdk_dumps_it(sdk: openai.OpenAI) -> None:
    first = sdk.chat.completions.create(model="default", messages=MESSAGES, max_tokens=3)
    history = [*MESSAGES, first.choices[0].message.model_dump(), {"role": "user", "content": "and"}]
    second = sdk.chat.completions.create(model="default", messages=history, max_tokens=3)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
