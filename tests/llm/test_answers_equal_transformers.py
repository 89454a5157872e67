"""Greedy answers, their text and their log-probabilities are those of transformers."""

from __future__ import annotations

import pytest
import torch

from pymllm import SamplingParams

PROMPTS = ["hello", "The capital of France is", "é🎉 你好", "a b c d e f g " * 10, "x"]


def test_greedy_batch(llm, tokenizer, greedy):
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24))
    for prompt, out in zip(PROMPTS, outputs):
        ids = tokenizer(prompt)["input_ids"]
        expected = greedy(ids, 24)
        answer = out.outputs[0]
        assert (out.prompt, out.prompt_token_ids) == (prompt, ids)
        assert answer.token_ids == expected
        assert answer.text == tokenizer.decode(expected, skip_special_tokens=True)
        assert answer.finish_reason == ("length" if len(expected) == 24 and expected[-1] < 285 else "stop")


def test_end_tokens_end_the_answer_and_ignore_eos_does_not(llm, greedy, tokenizer):
    """With every other token forbidden by a bias, the model must draw an end token."""
    end = tokenizer.eos_token_id
    bias = {end: 100.0}
    out = llm.generate("hello", SamplingParams(temperature=0, max_tokens=5, logit_bias=bias))[0].outputs[0]
    assert (out.token_ids, out.text, out.finish_reason, out.stop_reason) == ([end], "", "stop", end)
    out = llm.generate("hello", SamplingParams(temperature=0, max_tokens=5, logit_bias=bias, ignore_eos=True))[0]
    assert (out.outputs[0].token_ids, out.outputs[0].finish_reason) == ([end] * 5, "length")


def test_chat(llm, tokenizer, greedy):
    conversations = [
        [{"role": "user", "content": "hello"}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "who are you?"}],
    ]
    many = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=12))
    for conversation, out in zip(conversations, many):
        ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert out.prompt_token_ids == ids
        assert out.outputs[0].token_ids == greedy(ids, 12)
        one = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=12))
        assert [o.outputs[0].token_ids for o in one] == [out.outputs[0].token_ids]


def test_logprobs(llm, model):
    prompt = [10, 20, 30, 40]
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    out = llm.generate([prompt], params)[0]
    answer = out.outputs[0]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer.token_ids])).logits[0].double()
    reference = torch.log_softmax(logits, -1)
    assert len(answer.logprobs) == 6
    for position, entry in enumerate(answer.logprobs):
        row = reference[len(prompt) - 1 + position]
        assert list(entry)[:3] == row.topk(3).indices.tolist()
        assert entry == pytest.approx({token: row[token].item() for token in entry}, abs=1e-4)
    chosen = sum(reference[3 + i, token].item() for i, token in enumerate(answer.token_ids))
    assert answer.cumulative_logprob == pytest.approx(chosen, abs=1e-3)
    assert out.prompt_logprobs[0] is None
    for position, entry in enumerate(out.prompt_logprobs[1:], 1):
        row = reference[position - 1]
        assert prompt[position] in entry
        assert set(row.topk(2).indices.tolist()) <= set(entry)
        assert entry == pytest.approx({token: row[token].item() for token in entry}, abs=1e-4)
