"""The worst-case step: the largest batch a step may be, run once before the KV pool is allocated."""

from __future__ import annotations

from pymllm.engine.messages import EngineRequest
from pymllm.engine.plan import StepItem, StepPlan
from pymllm.engine.request import Request
from pymllm.engine.runner import Runner
from pymllm.interfaces.attention import AttentionBackend
from pymllm.sampling import SamplingParams

MAX_CONTEXT_STEPS = 4
"""The measured chunk comes after a context of this many chunks at most; memory of attention beyond grows
only with what the backend gathers, and a longer run would slow down every start."""


def worst_case_step(
    runner: Runner, attention: AttentionBackend, *, max_batch_tokens: int, max_running: int, max_context: int
) -> None:
    """Run a prefill of ``max_batch_tokens`` tokens at the end of a long context, then sample for as many
    requests as may decode at once. Leaves scratch pages allocated; the caller allocates the real pool."""
    page_size = attention.context.page_size
    chunk = min(max_batch_tokens, max(1, max_context - 1))
    context = min(max(1, max_context - 1), MAX_CONTEXT_STEPS * chunk)
    rows = min(max_running, max_batch_tokens)
    pages = max(-(-(context + 1) // page_size), rows)
    for group in attention.context.groups.values():
        attention.allocate(group, pages + 1)
    prefill = _request("prefill", context, list(range(1, -(-context // page_size) + 1)))
    runner.run(StepPlan([StepItem(prefill, context - chunk, chunk, True)]))
    decodes = [_request(f"decode-{i}", 1, [i + 1]) for i in range(rows)]
    runner.run(StepPlan([StepItem(request, 0, 1, True) for request in decodes]))


def _request(name: str, tokens: int, pages: list[int]) -> Request:
    """A request that exercises the sampler's costly path."""
    sampling = SamplingParams(temperature=1.0, top_p=0.9, top_k=0, min_p=0.0, repetition_penalty=1.0, logprobs=1)
    spec = EngineRequest(id=name, token_ids=[0] * tokens, sampling=sampling)
    return Request(spec, serial=0, seed=0, max_length=tokens + 1, pages=pages)
