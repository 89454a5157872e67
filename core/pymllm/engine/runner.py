"""Runs the model on a step plan and draws the next tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pymllm.engine.batch import forward_batch, sample_row
from pymllm.engine.media import MediaStore
from pymllm.engine.messages import TokenLogprobs
from pymllm.engine.plan import ItemResult, StepItem, StepPlan
from pymllm.engine.sampler import prompt_logprobs, sample
from pymllm.engine.sampling_batch import SamplingBatch
from pymllm.interfaces.attention import AttentionBackend
from pymllm.interfaces.model import Model

PROMPT_LOGPROB_ROWS = 64
"""Prompt rows whose logits exist at a time (64 x 151,936 x 4 bytes = 39 MB)."""


class Runner:
    """The model, its attention backend and the sampler on one device. Knows nothing of scheduling."""

    def __init__(
        self, model: Model, attention: AttentionBackend, *, vocab_size: int, media: MediaStore | None = None
    ) -> None:
        """media: for a model that takes images or videos."""
        self._model = model
        self._media = media
        self._attention = attention
        self._vocab_size = vocab_size

    def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
        """Compute a step now; see :class:`pymllm.engine.engine.StepRunner`."""
        results = self.run(plan)
        return lambda: results

    def healthy(self) -> bool:
        """A CPU does not fail for good."""
        return True

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[ItemResult]:
        """Compute a step; one result per item. Raises whatever the model raises; running the same plan
        again is safe, since KV is written to the same slots."""
        hidden, logits = self.forward(plan)
        rows = [sample_row(item) for item in plan.items if item.samples]
        results = [ItemResult() for _ in plan.items]
        if rows:
            samples = sample(logits, SamplingBatch.build(rows, self._vocab_size, logits.device))
            tokens, logprobs = samples.to_host()
            sampled = [result for result, item in zip(results, plan.items) if item.samples]
            for result, token, logprob, valid in zip(sampled, tokens, logprobs, samples.valid.tolist()):
                result.token, result.logprobs, result.valid = token, logprob, valid
        self._add_what_prefills_bring(plan, hidden, results)
        return results

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [T, C] of all tokens and logits [S, V] of the items that sample."""
        context = self._attention.context
        media = self._media.rows(plan.items) if self._media is not None else None
        axes = self._model.position_axes
        batch = forward_batch(plan, context.page_size, context.device, axes=axes, media=media)
        self._attention.plan(batch.attention)
        hidden = self._model(batch)
        return hidden, self._model.logits(hidden.index_select(0, batch.logit_rows))

    def _add_what_prefills_bring(self, plan: StepPlan, hidden: torch.Tensor, results: list[ItemResult]) -> None:
        """Prompt log-probabilities; and whether a chunk that does not sample is sound, before its KV is shared:
        a NaN in the KV of a token reaches all later tokens of the request, so the last one tells."""
        first = 0
        for item, result in zip(plan.items, results):
            if item.request.wants_prompt_logprobs:
                result.prompt_logprobs = prompt_logprobs_of(self._model, item, hidden[first : first + item.count])
            first += item.count
            if not item.samples:
                result.valid = bool(hidden[first - 1].isfinite().all())


def prompt_logprobs_of(model: Model, item: StepItem, hidden: torch.Tensor) -> list[TokenLogprobs]:
    """Log-probabilities of the prompt tokens that follow an item's tokens, whose hidden states [count, C] these
    are. Waits for the device."""
    prompt = item.request.spec.token_ids
    targets = prompt[item.start + 1 : item.start + item.count + 1]
    wanted = item.request.spec.sampling.prompt_logprobs
    assert wanted is not None, "only asked for requests that want them"
    found: list[TokenLogprobs] = []
    for i in range(0, len(targets), PROMPT_LOGPROB_ROWS):
        part = targets[i : i + PROMPT_LOGPROB_ROWS]
        logits = model.logits(hidden[i : i + len(part)])
        found += prompt_logprobs(logits, torch.tensor(part, device=logits.device), wanted)
    return found
