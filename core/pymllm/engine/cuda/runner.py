"""Runs step plans on a CUDA device without waiting for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.batch import sample_row
from pymllm.engine.cuda.decode import DecodeGraphs
from pymllm.engine.cuda.inputs import mixed_inputs
from pymllm.engine.cuda.prefill import PrefillGraphs
from pymllm.engine.cuda.sizes import decode_sizes, prefill_sizes
from pymllm.engine.cuda.staging import Answer, to_device
from pymllm.engine.cuda.tables import PageTables
from pymllm.engine.fast_parameters import fast_seeds
from pymllm.engine.kernels.sample import FastSampler
from pymllm.engine.messages import TokenLogprobs
from pymllm.engine.plan import ItemResult, StepItem, StepPlan
from pymllm.engine.runner import prompt_logprobs_of
from pymllm.engine.sampler import Samples, sample
from pymllm.engine.sampling_batch import SampleRow, SamplingBatch
from pymllm.interfaces.attention import AttentionBackend
from pymllm.interfaces.model import Model

log = logging.getLogger(__name__)


Extra = Callable[[ItemResult], None] | None
"""What is still to be written into an item's result, once it is waited for."""


class CudaRunner:
    """A :class:`pymllm.engine.engine.StepRunner` for CUDA.

    A step may be launched before the last one's tokens were read: sampled tokens stay on the device, by
    request slot, and feed the next step there.

    max_running: request slots. max_context: tokens. graphs: replay CUDA graphs.
    """

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        *,
        vocab_size: int,
        max_running: int,
        max_context: int,
        max_batch_tokens: int,
        graphs: bool,
    ) -> None:
        self._model = model
        self._attention = attention
        self._vocab_size = vocab_size
        device, page_size = attention.context.device, attention.context.page_size
        self._device = device
        self._tables = PageTables(max_running, -(-max_context // page_size), device)
        self._last_tokens = torch.zeros(max_running + 1, dtype=torch.int64, device=device)
        sizes = prefill_sizes(max_batch_tokens) if graphs else []
        self._prefill = PrefillGraphs(model, attention, sizes)
        self._sampler = FastSampler(max_running, vocab_size, device)
        self._decode: DecodeGraphs | None = None
        if graphs:
            most = min(max_running, max_batch_tokens)
            self._decode = DecodeGraphs(
                model, attention, self._tables, self._last_tokens, decode_sizes(most), self._sampler
            )

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture all graphs; the KV pool must be allocated for good."""
        if self._decode is None:
            return
        started = time.monotonic()
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._prefill.capture(pool)
            self._decode.capture(pool)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize(self._device)
        count = len(self._decode.sizes) + len(self._prefill.sizes)
        log.info("captured CUDA graphs for %d sizes in %.1f s", count, time.monotonic() - started)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
        """Start a step; the call that is returned waits for its results."""
        self._tables.update(plan.items)
        size = self._decode_size(plan.items)
        if self._decode is None or size is None:
            return self._launch_mixed(plan)
        results, rows = self._decode.replay(plan.items, size)
        if rows is not None:
            return self._sample(plan.items, self._decode.logits(size, len(rows)), rows, [])
        answer = Answer(results)
        return lambda: _plain_results(answer)

    def healthy(self) -> bool:
        """Whether the device still answers: after an illegal access, say, every call fails."""
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:
            return False
        return True

    def _decode_size(self, items: list[StepItem]) -> int | None:
        """The graph that a step of decodes alone is replayed with, None for any other step."""
        if self._decode is None or not all(item.count == 1 and item.samples for item in items):
            return None
        if any(item.request.wants_prompt_logprobs for item in items):
            return None
        return self._decode.size_for(len(items))

    def _launch_mixed(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
        rows = [sample_row(item) for item in plan.items if item.samples]
        seeds = fast_seeds(rows) if rows else None
        static = self._prefill.static_inputs(plan.tokens)
        page_size = self._attention.context.page_size
        inputs = mixed_inputs(plan, page_size, self._device, static, seeds)
        self._fill_in_last_tokens(plan, inputs.batch.token_ids)
        hidden = self._prefill.forward(inputs.batch, replay=static is not None)
        extras = self._what_prefills_bring(plan, hidden)
        if not rows:
            return lambda: _with_extras([ItemResult() for _ in plan.items], extras)
        logits = self._model.logits(hidden.index_select(0, inputs.batch.logit_rows))
        if inputs.seeds is None:
            return self._sample(plan.items, logits, rows, extras)
        results = torch.empty(2, len(rows), dtype=torch.int64, device=self._device)
        self._sampler.seeded(logits, *inputs.seeds, results[0], results[1])
        self._last_tokens.index_copy_(0, inputs.sample_slots.to(torch.int64), results[0])
        answer = Answer(results)
        return lambda: _with_extras(_spread(plan.items, _plain_results(answer)), extras)

    def _fill_in_last_tokens(self, plan: StepPlan, token_ids: Tensor) -> None:
        """Put the tokens that the host does not know yet into their places."""
        places, slots, row = [], [], 0
        for item in plan.items:
            row += item.count
            if item.start + item.count > len(item.request.tokens):
                places.append(row - 1)
                slots.append(item.request.slot)
        if places:
            index = to_device(np.array([places, slots]), self._device)
            token_ids.index_copy_(0, index[0], self._last_tokens.index_select(0, index[1]))

    def _sample(
        self, items: list[StepItem], logits: Tensor, rows: list[SampleRow], extras: list[Extra]
    ) -> Callable[[], list[ItemResult]]:
        """Draw the tokens of the sampled items in the general way, keep them for the next step, and send them to
        the host."""
        samples = sample(logits, SamplingBatch.build(rows, self._vocab_size, self._device))
        slots = to_device(np.array([item.request.slot for item in items if item.samples]), self._device)
        self._last_tokens.index_copy_(0, slots, samples.tokens)
        answer = Answer(torch.stack([samples.tokens, samples.valid.to(torch.int64)]))

        def wait() -> list[ItemResult]:
            plain = _plain_results(answer)
            for result, logprobs in zip(plain, _logprobs(samples)):
                result.logprobs = logprobs
            return _with_extras(_spread(items, plain), extras)

        return wait

    def _what_prefills_bring(self, plan: StepPlan, hidden: Tensor) -> list[Extra]:
        """For each item, what is still to be written into its result (see Runner)."""
        extras: list[Extra] = []
        row = 0
        for item in plan.items:
            extras.append(self._extra(item, hidden[row : row + item.count]))
            row += item.count
        return extras

    def _extra(self, item: StepItem, hidden: Tensor) -> Extra:
        logprobs: list[TokenLogprobs] | None = None
        if item.request.wants_prompt_logprobs:
            logprobs = prompt_logprobs_of(self._model, item, hidden)
        sound = None if item.samples else Answer(hidden[-1].isfinite().all())
        if logprobs is None and sound is None:
            return None

        def complete(result: ItemResult) -> None:
            result.prompt_logprobs = logprobs
            if sound is not None:
                result.valid = bool(sound.wait())

        return complete


def _spread(items: list[StepItem], sampled: list[ItemResult]) -> list[ItemResult]:
    """A result for each item: those of the items that sample, empty ones between them."""
    drawn = iter(sampled)
    return [next(drawn) if item.samples else ItemResult() for item in items]


def _with_extras(results: list[ItemResult], extras: list[Extra]) -> list[ItemResult]:
    for result, extra in zip(results, extras):
        if extra is not None:
            extra(result)
    return results


def _plain_results(answer: Answer) -> list[ItemResult]:
    tokens, valid = answer.wait().tolist()
    return [ItemResult(token=token, valid=bool(ok)) for token, ok in zip(tokens, valid)]


def _logprobs(samples: Samples) -> list[TokenLogprobs | None]:
    """Log-probabilities of each row; waits for the device only if some row wants them."""
    if samples.logprobs is None:
        return [None] * len(samples.tokens)
    return samples.to_host()[1]
