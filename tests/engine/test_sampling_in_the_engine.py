"""What a request asks of the sampler reaches it, in a batch of different requests, and survives preemption."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engines import run, start, tokens
from pymllm.sampling import SamplingParams

COUNT = 24
POOLS = {
    "ample": {},
    "preempting": {
        "engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": "chunk", "engine.max_batch_tokens": 32,
    },
    "evicting": {"engine.max_total_tokens": 128, "cache.page_size": 4, "engine.max_batch_tokens": 5},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


@pytest.fixture(params=POOLS)
def client(tiny_llama, request):
    client = start(tiny_llama, POOLS[request.param])
    yield client
    preemptions = client.stats().total_preemptions
    client.close()
    assert (preemptions > 0) == (request.param != "ample")


def params(**more) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": COUNT, "ignore_eos": True, **more}).with_defaults({})


@torch.inference_mode()
def generate(model, prompt: list[int], **options) -> list[int]:
    ids = torch.tensor([prompt])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None, pad_token_id=0,
        max_new_tokens=COUNT, **options,
    )  # fmt: skip
    return found[0, len(prompt) :].tolist()


def logits(model, ids: list[int]) -> torch.Tensor:
    """[T, V], float32."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def penalized_greedy(model, prompt: list[int], presence: float, frequency: float) -> list[int]:
    """By the definition: logit - presence * [count > 0] - frequency * count, over the answer's tokens."""
    answer: list[int] = []
    for _ in range(COUNT):
        row = logits(model, prompt + answer)[-1].double()
        counts = torch.bincount(torch.tensor(answer, dtype=torch.int64), minlength=len(row))
        answer.append(int((row - presence * (counts > 0) - frequency * counts).argmax()))
    return answer


@pytest.fixture(scope="module")
def penalized(model, prompts) -> list[tuple[list[int], SamplingParams, list[int]]]:
    """Prompts, settings, and transformers' answers, most of which the settings change."""
    bias = {7: 6.0, 100: -50.0, 33: 4.5}
    cases = [
        (params(repetition_penalty=1.9), lambda p: generate(model, p, repetition_penalty=1.9)),
        (params(repetition_penalty=0.6), lambda p: generate(model, p, repetition_penalty=0.6)),
        (params(logit_bias=bias), lambda p: generate(model, p, sequence_bias={(t,): b for t, b in bias.items()})),
        (params(presence_penalty=1.5), lambda p: penalized_greedy(model, p, 1.5, 0.0)),
        (params(frequency_penalty=0.9), lambda p: penalized_greedy(model, p, 0.0, 0.9)),
        (params(presence_penalty=-0.7, frequency_penalty=1.1), lambda p: penalized_greedy(model, p, -0.7, 1.1)),
    ]
    found = [(prompt, sampling, answer(prompt)) for prompt in prompts[1::3] for sampling, answer in cases]
    plain = {tuple(prompt): generate(model, prompt) for prompt in prompts[1::3]}
    assert sum(answer != plain[tuple(prompt)] for prompt, _, answer in found) > len(found) / 2
    return found


def test_greedy_with_penalties_and_bias(client, penalized) -> None:
    """Each prompt with each setting, all at once."""
    asked, settings, expected = zip(*penalized)
    assert tokens(run(client, asked, settings)) == list(expected)


def test_draws_are_of_what_is_kept(client, model, prompts) -> None:
    """Every drawn token is one that transformers' warpers keep, in the order in which ``generate`` applies them."""
    cases = [
        (params(temperature=1.4, top_k=3, seed=1), [TemperatureLogitsWarper(1.4), TopKLogitsWarper(3)]),
        (params(temperature=1.2, top_p=0.4, seed=2), [TemperatureLogitsWarper(1.2), TopPLogitsWarper(0.4)]),
        (params(temperature=2.0, min_p=0.3, seed=3), [TemperatureLogitsWarper(2.0), MinPLogitsWarper(0.3)]),
        (params(temperature=0.7, top_k=1, seed=4), [TopKLogitsWarper(1)]),
        (params(temperature=1.0, min_p=1.0, seed=5), [TopKLogitsWarper(1)]),
    ]
    asked = [(prompt, case) for prompt in prompts[::3] for case in cases]
    found = tokens(run(client, [prompt for prompt, _ in asked], [case[0] for _, case in asked]))
    strayed = 0
    for answer, (prompt, (_, warpers)) in zip(found, asked):
        rows = logits(model, prompt + answer)[len(prompt) - 1 : -1]
        kept = LogitsProcessorList(warpers)(torch.tensor([[0]]), rows.clone())
        chosen = kept.gather(1, torch.tensor(answer)[:, None])
        assert torch.isfinite(chosen).all(), "a token was drawn that is not kept"
        strayed += int((rows.argmax(-1) != torch.tensor(answer)).sum())
    assert strayed > COUNT  # these were draws, not the likeliest tokens


def test_draws_are_the_same_with_and_without_preemption(tiny_llama, prompts) -> None:
    asked = [
        params(temperature=1.3, seed=i, repetition_penalty=1.3, presence_penalty=0.5, min_p=0.02)
        for i in range(len(prompts))
    ]
    answers = []
    for pool in POOLS.values():
        client = start(tiny_llama, pool)
        try:
            answers.append(tokens(run(client, prompts, asked)))
        finally:
            client.close()
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]
