"""The bookkeeping of the CUDA runner, on a CPU: whatever is asked of the sampler, with and without graphs, overlap and
preemption, its answers are those of the plain runner."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from pymllm.engine.engine import Engine
from pymllm.engine.messages import EngineRequest
from pymllm.engine.runner import Runner
from pymllm.interfaces.cache import CacheContext
from pymllm.sampling import SamplingParams
from pymllm_cache_radix.plugin import pymllm_cache as radix
from simulated import info

pytest.importorskip("triton")

from cuda_stand_in import install
from pymllm.engine.cuda.runner import CudaRunner

V = 400
MAX_RUNNING = 6
CPU = torch.device("cpu")
KINDS = [
    {"temperature": 0.0},
    {"temperature": 1.2},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.5, "min_p": 0.05, "logprobs": 2},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"temperature": 1.0, "logit_bias": {7: 3.0, 9: -4.0}, "min_tokens": 4, "stop_token_ids": [*range(40)]},
    {"temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.3, "logit_bias": {11: 5.0}, "logprobs": 0},
]


class Context:
    device, dtype = CPU, torch.float32

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size


class Model:
    """Its logits depend on the last token and its position."""

    position_axes = 1

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._of_token = torch.randn(V, V, generator=generator)
        self._of_position = torch.randn(512, V, generator=generator)

    def __call__(self, batch) -> torch.Tensor:
        return torch.stack([batch.token_ids, batch.positions], dim=1).float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        token, position = hidden.long().unbind(1)
        return (self._of_token[token] + self._of_position[position]) * 2

    def modules(self) -> list:
        return []


def attention(page_size: int) -> SimpleNamespace:
    capabilities = SimpleNamespace(prefill_capture=True)
    return SimpleNamespace(context=Context(page_size), capabilities=capabilities, plan=lambda batch: None)


def traffic(seed: int) -> list[EngineRequest]:
    rng = random.Random(seed)
    specs = []
    for i in range(24):
        kind, count = KINDS[i % len(KINDS)], rng.choice([4, 5, 8, 12])
        sampling = SamplingParams(seed=rng.randrange(2**63), max_tokens=count, **kind)
        prompt = [rng.randrange(V) for _ in range(rng.randint(1, 9))]
        specs.append(EngineRequest(id=str(i), token_ids=prompt, sampling=sampling.with_defaults({})))
    return specs


def serve(runner, specs: list[EngineRequest], *, pages: int, page_size: int, overlap: bool) -> tuple[dict, dict, int]:
    """Tokens and log-probabilities by request, and how many were preempted. Requests arrive a few at a time."""
    facts = info(pages=pages, page_size=page_size, budget=16, max_running=MAX_RUNNING)
    policy = radix().load_factory()(radix().config(page_size=page_size), CacheContext(page_size, pages))
    engine, waiting = Engine(facts, runner, policy, seed=0, overlap=overlap), list(specs)
    found: dict[str, list[int]] = {spec.id: [] for spec in specs}
    logprobs: dict[str, list] = {spec.id: [] for spec in specs}
    while waiting or engine.has_work:
        for spec in waiting[:2]:
            engine.submit(spec)
        del waiting[:2]
        for output in engine.step():
            assert output.finish_reason in (None, "length", "stop")
            found[output.id] += output.token_ids
            logprobs[output.id] += output.logprobs or []
    engine.check_integrity()
    return found, logprobs, engine.stats().total_preemptions


@pytest.fixture(scope="module")
def expected() -> list[tuple[dict, dict]]:
    answers = []
    for seed in range(2):
        runner = Runner(Model(), attention(4), vocab_size=V)
        answers.append(serve(runner, traffic(seed), pages=200, page_size=4, overlap=False)[:2])
    return answers


@pytest.mark.parametrize("pages", [200, 14], ids=["ample", "preempting"])
@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
@pytest.mark.parametrize("graphs", [False, True], ids=["launched", "graphs"])
def test_answers_are_those_of_the_plain_runner(expected, monkeypatch, graphs, overlap, pages) -> None:
    install(monkeypatch)
    for seed, (tokens, logprobs) in enumerate(expected):
        sizes = {"max_running": MAX_RUNNING, "max_context": 48, "max_batch_tokens": 16}
        runner = CudaRunner(Model(), attention(4), vocab_size=V, graphs=graphs, **sizes)
        if graphs:
            runner._whole.sizes = [8, 16]  # such small ones are worth no graph outside a test
            for kind in (runner._whole, runner._decode):
                for size in reversed(kind.sizes):
                    kind.capture(size, None)
        found, its_logprobs, preemptions = serve(runner, traffic(seed), pages=pages, page_size=4, overlap=overlap)
        assert found == tokens
        assert its_logprobs == logprobs
        assert (preemptions > 0) == (pages == 14)
