"""The invariants of the engine on a CUDA device: greedy answers are those of transformers on a CPU."""

from __future__ import annotations

import queue
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from engines import answers, greedy, reference_answers, run, start, tokens
from pymllm.engine.messages import EngineRequest
from pymllm.sampling import SamplingParams
from pymllm.testing.tiny import make_tiny_checkpoint

pytestmark = pytest.mark.gpu

COUNT = 12
VARIANTS = {
    "default": {},
    "no reuse": {"cache.plugin": "chunk"},
    "page size 1": {"cache.page_size": 1},
    "budget 5": {"engine.max_batch_tokens": 5},
    "preempting": {"engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": "chunk"},
    "no overlap": {"engine.overlap": False},
    "no graphs": {"engine.cuda_graphs": False},
    "neither": {"engine.overlap": False, "engine.cuda_graphs": False},
    "torch attention": {"attention.plugin": "torch"},
    "triton attention": {"attention.plugin": "triton"},
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(7)
    shared = [rng.randrange(250) for _ in range(60)]
    alone = [[rng.randrange(250) for _ in range(n)] for n in (1, 2, 15, 16, 17, 33, 64, 90)]
    return alone + [shared[:cut] + [rng.randrange(250) for _ in range(9)] for cut in (20, 32, 48, 60)]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def checkpoint(request, tmp_path_factory):
    return make_tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def expected(checkpoint, prompts):
    return reference_answers(checkpoint, prompts, COUNT)


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_answers_in_float32(checkpoint, prompts, expected, overrides) -> None:
    client = start(checkpoint, {"engine.device": "cuda", **overrides})
    try:
        assert answers(client, prompts, COUNT) == expected
        assert answers(client, prompts, COUNT) == expected
    finally:
        client.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_agrees_with_itself(checkpoint, prompts, dtype) -> None:
    client = start(checkpoint, {"engine.device": "cuda", "model.dtype": dtype, "cache.plugin": "chunk"})
    try:
        first = answers(client, prompts, COUNT)
        assert [len(answer) for answer in first] == [COUNT] * len(prompts)
        assert answers(client, prompts, COUNT) == first
    finally:
        client.close()


SAMPLINGS = {
    "temperature": {"temperature": 1.2},
    "qwen3's defaults": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "qwen2.5's defaults": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
    "top_p": {"temperature": 1.2, "top_p": 0.8},
    "top_k and min_p": {"temperature": 1.2, "top_k": 20, "min_p": 0.02},
    "penalties": {"temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "a truncated draw's log-probability": {"top_p": 0.9, "logprobs": 0},
    "bias and min_tokens": {"temperature": 1.0, "logit_bias": {7: 3.0}, "min_tokens": 4},
    "greedy": {"temperature": 0.0},
    "greedy with penalties": {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
    "everything": {"top_p": 0.9, "presence_penalty": 0.7, "logit_bias": {9: 2.0}, "min_tokens": 3, "logprobs": 1},
}


@pytest.mark.parametrize("attention", ["torch", "triton"])
def test_draws_are_the_same_however_steps_are_run(tmp_path_factory, prompts, attention) -> None:
    """Every kind of sampling in one batch: with graphs, overlap and preemption as without, and as on a CPU."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("draws"), "qwen3")
    kinds = list(SAMPLINGS.values())
    wanted = [
        SamplingParams(seed=i, max_tokens=COUNT, ignore_eos=True, **kinds[i % len(kinds)]).with_defaults({})
        for i in range(len(prompts))
    ]

    def draws(options: dict, *, preempts: bool = False) -> list[list[int]]:
        client = start(folder, options)
        try:
            found = [tokens(run(client, prompts, wanted)) for _ in range(2)]
            assert found[0] == found[1]  # now with whatever is cached
            assert (client.stats().total_preemptions > 0) == preempts
            return found[0]
        finally:
            client.close()

    expected = draws({})
    assert [len(answer) for answer in expected] == [COUNT] * len(prompts)
    for graphs in (True, False) if attention == "triton" else (False,):
        for overlap in (True, False):
            options = {
                "engine.device": "cuda",
                "attention.plugin": attention,
                "engine.overlap": overlap,
                "engine.cuda_graphs": graphs,
            }
            assert draws(options) == expected
            assert draws({**options, **VARIANTS["preempting"]}, preempts=True) == expected


def test_each_kind_of_sampling_alone_and_in_a_batch(tmp_path_factory, prompts) -> None:
    """A batch of one kind is served by the graph for that kind, a mixed one by the graph for all."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("kinds"), "qwen3")
    client = start(folder, {"engine.device": "cuda"})
    try:
        for i, kind in enumerate(SAMPLINGS.values()):
            params = SamplingParams(seed=i, max_tokens=COUNT, ignore_eos=True, **kind).with_defaults({})
            others = [
                SamplingParams(seed=i, max_tokens=COUNT, ignore_eos=True, **other).with_defaults({})
                for other in SAMPLINGS.values()
            ]
            alone = tokens(run(client, prompts[:4], params))
            assert tokens(run(client, prompts[:4] + prompts[: len(others)], [params] * 4 + others))[:4] == alone
    finally:
        client.close()


def test_logprobs_with_graphs_and_overlap(tmp_path_factory, prompts) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("logprobs"), "qwen3")
    client = start(folder, {"engine.device": "cuda"})
    try:
        outputs = run(client, prompts, greedy(COUNT, logprobs=2, prompt_logprobs=0))
    finally:
        client.close()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, one, answer in zip(prompts, outputs, tokens(outputs)):
        with torch.inference_mode():
            expected = torch.log_softmax(model(torch.tensor([[*prompt, *answer]])).logits[0], -1)
        found = [entry for output in one for entry in output.logprobs]
        for i, (token, entry) in enumerate(zip(answer, found)):
            assert entry.logprob == pytest.approx(float(expected[len(prompt) - 1 + i, token]), abs=2e-3)
            assert len(entry.top) == 2
        for i, entry in enumerate(one[0].prompt_logprobs[1:]):
            assert entry.logprob == pytest.approx(float(expected[i, prompt[i + 1]]), abs=2e-3)


def test_aborts_in_every_phase(tmp_path_factory) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("aborts"), "llama")
    client = start(folder, {"engine.device": "cuda", "engine.max_batch_tokens": 8})
    arrived: queue.SimpleQueue = queue.SimpleQueue()
    try:
        for i in range(40):
            spec = EngineRequest(id=str(i), token_ids=[1 + i] * (5 + 3 * i), sampling=greedy(50))
            client.submit(spec, arrived.put)
            if i % 3 == 0:
                client.abort(str(i // 2))
        for i in range(0, 40, 2):
            client.abort(str(i))
        ended: dict[str, str] = {}
        while len(ended) < 40:
            output = arrived.get(timeout=60)
            assert output.id not in ended
            if output.finish_reason is not None:
                ended[output.id] = output.finish_reason
        assert set(ended.values()) <= {"abort", "length"}
        assert {name for name, reason in ended.items() if reason == "length"} <= {str(i) for i in range(1, 40, 2)}
        stats = client.stats()
        assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
    finally:
        client.close()
