"""Conversations become the tokens that transformers would give, or a sentence that says why not."""

from __future__ import annotations

import copy

import pytest

from pymllm.errors import RequestError
from pymllm.frontend.chat import render_chat

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def tokenizer(tokenizers):
    return copy.deepcopy(tokenizers["byte_level"])


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_hand_written_chatml(tokenizer):
    conversation = [{"role": "system", "content": "be brief"}, USER, {"role": "assistant", "content": "é"}, USER]
    text = (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\né<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
    )
    assert render_chat(tokenizer, conversation, add_generation_prompt=False) == ids(tokenizer, text)
    opened = ids(tokenizer, text + "<|im_start|>assistant\n")
    assert render_chat(tokenizer, conversation) == opened
    reference = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    assert opened == reference


def test_the_final_message_can_be_left_open(tokenizer):
    conversation = [USER, {"role": "assistant", "content": "I think"}]
    rendered = render_chat(tokenizer, conversation, add_generation_prompt=False, continue_final_message=True)
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nI think"
    assert rendered == ids(tokenizer, text)


def test_text_parts_are_joined_by_newlines(tokenizer):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render_chat(tokenizer, [{"role": "user", "content": parts}]) == render_chat(
        tokenizer, [{"role": "user", "content": "a\nb"}]
    )


def test_template_kwargs_reach_the_template(tokenizer):
    template = "{% if enable_thinking %}think {% endif %}{{ messages[0].content }}"
    for kwargs, text in (({"enable_thinking": True}, "think hello"), ({"enable_thinking": False}, "hello")):
        rendered = render_chat(tokenizer, [USER], chat_template=template, template_kwargs=kwargs)
        assert rendered == ids(tokenizer, text)


def test_the_developer_role_is_the_system_role_where_the_template_does_not_know_it(tokenizer):
    messages = [{"role": "developer", "content": "x"}, USER]
    assert render_chat(tokenizer, messages) == render_chat(tokenizer, [{"role": "system", "content": "x"}, USER])
    template = "{% for m in messages %}{% if m.role == 'developer' %}DEV{% endif %}{% endfor %}"
    assert render_chat(tokenizer, messages, chat_template=template) == ids(tokenizer, "DEV")


@pytest.mark.parametrize("template", ["{{ bos_token }}hello", "hello", "{{ bos_token }}{{ bos_token }}hello"])
def test_bos_is_never_doubled(tokenizers, template):
    tokenizer = copy.deepcopy(tokenizers["byte_fallback"])
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    assert tokenizer("hello")["input_ids"][0] == bos, "the tokenizer adds a BOS to plain text"
    rendered = render_chat(tokenizer, [USER], chat_template=template)
    assert rendered.count(bos) == (1 if "bos" in template else 0)
    assert [t for t in rendered if t != bos] == tokenizer("hello", add_special_tokens=False)["input_ids"]


def test_null_content_of_an_assistant_that_called_tools(tokenizer):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    template = (
        "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}"
        "{{ m.tool_calls[0].function.arguments['x'] + 1 }}{% endif %}{% endfor %}"
    )
    assert render_chat(tokenizer, messages, chat_template=template) == ids(tokenizer, "hello2")


@pytest.mark.parametrize(
    "messages, field, sentence",
    [
        ([], "messages", "at least one message"),
        ("hello", "messages", "must be a list"),
        (["hello"], "messages[0]", "an object with role and content"),
        ([{"content": "x"}], "messages[0].role", "must be one of system"),
        ([USER, {"role": ["user"], "content": "x"}], "messages[1].role", "must be one of system"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role", "'wizard'"),
        ([{"role": "user"}], "messages[0].content", "not null"),
        ([{"role": "assistant", "content": None}], "messages[0].content", "not null"),
        ([{"role": "user", "content": 7}], "messages[0].content", "a string or a list of parts"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", "an object with a type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "must be a string"),
        (
            [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[1].content[0].type",
            "image_url is not supported by this model",
        ),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content", "lone surrogate"),
        ([{"role": "assistant", "content": "", "tool_calls": [1]}], "messages[0].tool_calls[0]", "a function"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
            "not valid JSON",
        ),
    ],
)
def test_a_malformed_message_is_refused_by_its_path(tokenizer, messages, field, sentence):
    with pytest.raises(RequestError) as caught:
        render_chat(tokenizer, messages)
    assert caught.value.field == field
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template, sentence",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{% if %}", "Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_answers_with_its_own_sentence(tokenizer, template, sentence):
    with pytest.raises(RequestError, match=sentence):
        render_chat(tokenizer, [USER], chat_template=template)


def test_what_cannot_chat_says_so(tokenizers, tokenizer):
    with pytest.raises(RequestError, match="no tokenizer"):
        render_chat(None, [USER])
    with pytest.raises(RequestError, match="no chat template"):
        render_chat(tokenizers["metaspace"], [USER])
    with pytest.raises(RequestError, match="cannot be combined"):
        render_chat(tokenizer, [USER], continue_final_message=True)


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "messages", "add_generation_prompt", "padding"])
def test_template_kwargs_cannot_steer_the_rendering(tokenizer, name):
    with pytest.raises(RequestError, match=f"cannot set '{name}'"):
        render_chat(tokenizer, [USER], template_kwargs={name: True})
