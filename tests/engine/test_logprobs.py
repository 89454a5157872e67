"""Log-probabilities of answers and prompts are log-softmax of transformers' logits, however they are computed."""

from __future__ import annotations

import pytest
import torch

from engines import answers, greedy, reference_answers, run, start, tokens
from pymllm.engine.messages import TokenLogprobs
from pymllm.sampling import SamplingParams

COUNT = 6
TOP = 5
BOUND = 1e-4


@pytest.fixture(scope="module")
def table(tiny_llama):
    """Token ids -> log-probabilities of every next token [T, V], by transformers in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()

    @torch.inference_mode()
    def compute(ids: list[int]) -> torch.Tensor:
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)

    return compute


def check(entry: TokenLogprobs, token: int, row: torch.Tensor, top: int) -> None:
    assert entry.logprob == pytest.approx(row[token].item(), abs=BOUND)
    assert len(entry.top) == top
    assert list(entry.top.values()) == pytest.approx(row.topk(top).values.tolist(), abs=BOUND)
    for other, value in entry.top.items():
        assert value == pytest.approx(row[other].item(), abs=BOUND)


def check_answer(outputs, prompt: list[int], table, top: int) -> None:
    [found] = tokens([outputs])
    rows = table(prompt + found)[len(prompt) - 1 : -1]
    for output, token, row in zip(outputs, found, rows, strict=True):
        [entry] = output.logprobs
        check(entry, token, row, top)


def check_prompt(outputs, prompt: list[int], table, top: int) -> None:
    found = outputs[0].prompt_logprobs
    assert all(output.prompt_logprobs is None for output in outputs[1:])
    assert len(found) == len(prompt)
    assert found[0] is None
    for entry, token, row in zip(found[1:], prompt[1:], table(prompt)[:-1], strict=True):
        check(entry, token, row, top)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_of_answers(tiny_llama, prompts, table, temperature: float) -> None:
    """They are the model's own: neither temperature nor bias nor penalty moves them."""
    changed = {"logit_bias": {5: 3.0}, "repetition_penalty": 1.7} if temperature else {}
    client = start(tiny_llama)
    try:
        asked = [
            SamplingParams(
                temperature=temperature, max_tokens=COUNT, ignore_eos=True, logprobs=i % 4 * TOP, seed=i, **changed
            ).with_defaults({})
            for i in range(len(prompts))
        ]
        for prompt, params, outputs in zip(prompts, asked, run(client, prompts, asked)):
            check_answer(outputs, prompt, table, params.logprobs)
    finally:
        client.close()


VARIANTS = {
    "chunks of 3": {"engine.max_batch_tokens": 3},
    "chunks of 64": {"engine.max_batch_tokens": 64},
    "whole": {"engine.max_batch_tokens": 512},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_of_prompts(tiny_llama, prompts, table, variant: str) -> None:
    """Every other request wants them; the others are answered as ever."""
    client = start(tiny_llama, VARIANTS[variant])
    try:
        plain, wanted = greedy(COUNT), greedy(COUNT, prompt_logprobs=TOP, logprobs=1)
        expected = reference_answers(tiny_llama, prompts, COUNT)
        for _ in range(2):  # the second time with a warm cache
            outputs = run(client, prompts, [wanted if i % 2 else plain for i in range(len(prompts))])
            assert tokens(outputs) == expected
            for prompt, one in list(zip(prompts, outputs))[1::2]:
                check_prompt(one, prompt, table, TOP)
                check_answer(one, prompt, table, 1)
            assert all(output.prompt_logprobs is None for one in outputs[::2] for output in one)
            assert all(output.logprobs is None for one in outputs[::2] for output in one)
    finally:
        client.close()


@pytest.mark.parametrize("cache", ["radix", "chunk"])
def test_of_a_prompt_that_is_preempted_halfway(tiny_llama, prompts, table, cache: str) -> None:
    """The first request grows while the second one's prompt is computed, two tokens a step, and takes its pages."""
    pool = {"engine.max_batch_tokens": 3, "engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": cache}
    client = start(tiny_llama, pool)
    try:
        first, second = prompts[0] * 8, prompts[7] + prompts[4]  # 8 and 107 tokens
        asked = [greedy(60), greedy(COUNT, prompt_logprobs=TOP, logprobs=1)]
        outputs = run(client, [first, second], asked)
        assert client.stats().total_preemptions > 0
        check_prompt(outputs[1], second, table, TOP)
        check_answer(outputs[1], second, table, 1)
        assert tokens(outputs[:1]) == reference_answers(tiny_llama, [first], 60)
    finally:
        client.close()


def test_prompts_that_want_them_are_reused_by_others(tiny_llama, prompts, table) -> None:
    client = start(tiny_llama)
    try:
        prompt = prompts[7]  # 90 tokens
        [outputs] = run(client, [prompt], greedy(1, prompt_logprobs=0))
        check_prompt(outputs, prompt, table, 0)
        [outputs] = run(client, [prompt], greedy(1))
        assert outputs[0].cached_tokens == 80
        [outputs] = run(client, [prompt], greedy(1, prompt_logprobs=100))
        assert outputs[0].cached_tokens == 0
    finally:
        client.close()


def test_a_prompt_of_one_token_has_none(tiny_llama, table) -> None:
    client = start(tiny_llama)
    try:
        [outputs] = run(client, [[7]], greedy(2, prompt_logprobs=2))
        assert outputs[0].prompt_logprobs == [None]
        assert answers(client, [[7]], 2) == reference_answers(tiny_llama, [[7]], 2)
    finally:
        client.close()
