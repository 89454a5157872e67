"""Runs step plans on a CUDA device without waiting for it."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.cuda.decode import DecodeGraphs
from pymllm.engine.cuda.foresight import foresee
from pymllm.engine.cuda.graph import no_garbage_collection
from pymllm.engine.cuda.inputs import StepInputs
from pymllm.engine.cuda.media import MediaGraphs
from pymllm.engine.cuda.prefill import PrefillGraphs
from pymllm.engine.cuda.sampler import StepSampler
from pymllm.engine.cuda.sizes import MOST_WHOLE, decode_sizes, media_sizes, prefill_sizes
from pymllm.engine.cuda.staging import Answer, to_device
from pymllm.engine.cuda.tables import PageTables
from pymllm.engine.cuda.whole import WholePrefillGraphs
from pymllm.engine.media import MediaStore
from pymllm.engine.messages import TokenLogprobs
from pymllm.engine.plan import ItemResult, StepItem, StepPlan
from pymllm.engine.runner import prompt_logprobs_of
from pymllm.interfaces.attention import AttentionBackend
from pymllm.interfaces.model import Model
from pymllm.layers.varlen import VarlenStack

log = logging.getLogger(__name__)


Extra = Callable[[ItemResult], None] | None
"""What is still to be written into an item's result, once it is waited for."""


class CudaRunner:
    """A :class:`pymllm.engine.engine.StepRunner` for CUDA.

    A step may be launched before the last one's tokens were read: sampled tokens stay on the device, by
    request slot, and feed the next step there.

    max_running: request slots. max_context: tokens. graphs: replay CUDA graphs. media: for a model that takes images or
    videos.
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
        media: MediaStore | None = None,
    ) -> None:
        self._model = model
        self._media = media
        self._attention = attention
        device, page_size = attention.context.device, attention.context.page_size
        self._device = device
        self._tables = PageTables(max_running, -(-max_context // page_size), device)
        self._last_tokens = torch.zeros(max_running + 1, dtype=torch.int64, device=device)
        sizes = prefill_sizes(max_batch_tokens) if graphs else []
        self._inputs = StepInputs(max(sizes, default=0), page_size, device, model.position_axes)
        self._prefill = PrefillGraphs(model, attention, self._inputs, sizes)
        self._sampler = StepSampler(max_running, vocab_size, self._last_tokens, device)
        whole = [size for size in sizes if size <= MOST_WHOLE] if attention.capabilities.prefill_capture else []
        self._whole = WholePrefillGraphs(model, attention, self._tables, self._sampler, whole, vocab_size)
        stacks = [module for module in model.modules() if isinstance(module, VarlenStack)] if graphs else []
        self._towers = [MediaGraphs(stack, attention, media_sizes()) for stack in stacks]
        self._decode: DecodeGraphs | None = None
        if graphs:
            most = min(max_running, max_batch_tokens)
            self._decode = DecodeGraphs(
                model, attention, self._tables, self._last_tokens, decode_sizes(most), self._sampler
            )

    @torch.inference_mode()
    def foresee(self) -> int:
        """Bytes that ``capture`` will take; whatever the KV pool's size, which may still change."""
        pools = [torch.cuda.graph_pool_handle()]

        def release() -> None:
            gc.collect()  # what was captured refers to itself
            torch.cuda.empty_cache()
            pools.append(torch.cuda.graph_pool_handle())

        return foresee(
            self._kinds(),
            lambda kind, sizes: self._capture({kind: sizes}, pools[-1]),
            lambda: _bytes_in_use(self._device),
            release,
        )

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture all graphs; the KV pool must be allocated for good."""
        kinds = self._kinds()
        if not kinds:
            return
        started, before = time.monotonic(), _bytes_in_use(self._device)
        self._capture({kind: kind.sizes for kind in kinds}, torch.cuda.graph_pool_handle())
        log.info(
            "captured CUDA graphs for %d sizes in %.1f s; they take %.2f GiB",
            sum(len(kind.sizes) for kind in kinds), time.monotonic() - started,
            (_bytes_in_use(self._device) - before) / 2**30,
        )  # fmt: skip

    def _kinds(self) -> list[PrefillGraphs | WholePrefillGraphs | MediaGraphs | DecodeGraphs]:
        kinds = [kind for kind in (self._prefill, self._whole, *self._towers, self._decode) if kind is not None]
        return [kind for kind in kinds if kind.sizes]

    def _capture(self, sizes: Mapping[Any, list[int]], pool: Any) -> None:
        """On a side stream, each kind's sizes from the largest to the smallest."""
        stream = _side_stream(self._device)
        stream.wait_stream(torch.cuda.current_stream())
        with no_garbage_collection(), torch.cuda.stream(stream):
            for kind, chosen in sizes.items():
                for size in reversed(chosen):
                    kind.capture(size, pool)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize(self._device)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
        """Start a step; the call that is returned waits for its results."""
        self._tables.update(plan.items)
        size = self._decode_size(plan.items)
        if self._decode is not None and size is not None:
            return self._decode.replay(plan.items, size)
        size = self._whole.size_for(plan)
        return self._launch_mixed(plan) if size is None else self._whole.replay(plan, size)

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
        media = self._media.rows(plan.items) if self._media is not None else None
        size = self._prefill.size_for(plan.tokens)
        batch = self._inputs.send(plan, size, media)
        self._fill_in_last_tokens(plan, batch.token_ids)
        hidden = self._prefill.forward(batch, replay=size is not None)
        extras = self._what_prefills_bring(plan, hidden)
        sampled = [item for item in plan.items if item.samples]
        if not sampled:
            return lambda: _with_extras([ItemResult() for _ in plan.items], extras)
        logits = self._model.logits(hidden.index_select(0, batch.logit_rows))
        wait = self._sample(sampled, logits)
        return lambda: _with_extras(_spread(plan.items, wait()), extras)

    def _sample(self, items: list[StepItem], logits: Tensor) -> Callable[[], list[ItemResult]]:
        """Draw the tokens of items that sample, from logits [items, V], and send them to the host."""
        ask = self._sampler.ask(self._sampler.inputs.next(), items, self._sampler.padded(len(items)))
        self._sampler.inputs.send()
        self._sampler.draw_by_graph(ask.need, logits)
        return self._sampler.answer(ask, logits)

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


@lru_cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: cuBLAS keeps tens of megabytes for each stream that it has run in."""
    return torch.cuda.Stream(device)


def _bytes_in_use(device: torch.device) -> int:
    """By anybody, the driver included; but for what PyTorch keeps of freed memory, which is given back."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _spread(items: list[StepItem], sampled: list[ItemResult]) -> list[ItemResult]:
    """A result for each item: those of the items that sample, empty ones between them."""
    drawn = iter(sampled)
    return [next(drawn) if item.samples else ItemResult() for item in items]


def _with_extras(results: list[ItemResult], extras: list[Extra]) -> list[ItemResult]:
    for result, extra in zip(results, extras):
        if extra is not None:
            extra(result)
    return results
