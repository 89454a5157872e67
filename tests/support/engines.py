"""Engines over tiny checkpoints, and answers by transformers, for tests of the whole stack."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pymllm.compose import compose
from pymllm.engine.client import EngineClient
from pymllm.engine.launch import launch
from pymllm.engine.messages import EngineRequest, TokenOutput
from pymllm.sampling import SamplingParams

TINY = {
    "model.dtype": "float32",
    "model.max_context": 512,
    "engine.device": "cpu",
    "engine.max_total_tokens": 4096,
    "engine.max_running_requests": 16,
    "engine.max_batch_tokens": 64,
    "engine.seed": 0,
}


def start(folder: Path, overrides: Mapping[str, Any] | None = None, *, process: bool = False) -> EngineClient:
    """An engine over a tiny checkpoint in float32 on the CPU."""
    return launch(
        compose(None, {"model.path": str(folder), **TINY, **(overrides or {})}), process=process, progress=False
    )


def greedy(count: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, **more).with_defaults({})


def run(
    client: EngineClient, prompts: Sequence[list[int]], sampling: SamplingParams | Sequence[SamplingParams]
) -> list[list[TokenOutput]]:
    """Submit all prompts at once; every prompt's outputs, in order."""
    params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
    arrived: queue.SimpleQueue[TokenOutput] = queue.SimpleQueue()
    for i, (prompt, wanted) in enumerate(zip(prompts, params)):
        client.submit(EngineRequest(id=f"{threading.get_ident()}-{i}", token_ids=prompt, sampling=wanted), arrived.put)
    outputs: list[list[TokenOutput]] = [[] for _ in prompts]
    open_requests = len(prompts)
    while open_requests:
        output = arrived.get(timeout=60)
        outputs[int(output.id.rpartition("-")[2])].append(output)
        open_requests -= output.finish_reason is not None
    return outputs


def tokens(outputs: list[list[TokenOutput]]) -> list[list[int]]:
    return [[token for output in one for token in output.token_ids] for one in outputs]


def clear_answers(outputs: list[list[TokenOutput]], margin: float) -> list[list[int]]:
    """Answers up to the first token that had a rival within ``margin`` of log-probability. outputs: with the
    log-probabilities of two tokens."""
    found = []
    for answer, one in zip(tokens(outputs), outputs):
        tops = [sorted(entry.top.values()) for output in one for entry in output.logprobs or ()]
        close = (count for count, (second, first) in enumerate(tops) if first - second < margin)
        found.append(answer[: next(close, len(answer))])
    return found


def answers(client: EngineClient, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Greedy answers of ``count`` tokens."""
    return tokens(run(client, prompts, greedy(count)))


@torch.inference_mode()
def reference_answers(folder: Path, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Greedy answers by transformers, in float32, one prompt at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        done = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        found.append(done[0, len(prompt) :].tolist())
    return found
