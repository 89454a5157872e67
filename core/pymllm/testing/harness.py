"""A model, loaded and ready to run on batches made by hand: an engine without scheduling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pymllm.checkpoint import load_weights, open_checkpoint
from pymllm.config import ModelConfig
from pymllm.interfaces import AttentionBackend, AttentionContext, Linear, Model, QuantMethod, WeightMap
from pymllm.layers import BuildContext, FullPrecision
from pymllm.registry import Registry
from pymllm.testing.batch import Chunk, forward_batch
from pymllm.testing.reference import ReferenceAttention

MakeAttention = Callable[[AttentionContext], AttentionBackend]

"""Builds an attention backend for a context."""


def attention_plugin(name: str) -> MakeAttention:
    """The installed attention plugin of that name, with its default options. Raises PluginError."""
    registry = Registry()
    spec = registry.load("attention", name)
    factory = registry.factory("attention", name, spec)
    return lambda context: factory(spec.config(), context)


@dataclass
class Harness:
    """A loaded model with a KV pool of ``pages`` pages of ``page_size`` tokens, page 0 included.

    unfilled: parameters that held NaN after loading, before the layers were finalized.
    """

    model: Model
    backend: AttentionBackend
    config: Mapping[str, Any]
    page_size: int
    pages: int
    unfilled: tuple[str, ...]

    @torch.inference_mode()
    def run(self, *chunks: Chunk) -> list[Tensor]:
        """One step over a flat batch of the chunks -> the logits of each chunk's rows, [len, V] each."""
        device, axes = self.backend.context.device, self.model.position_axes
        batch = forward_batch(chunks, self.page_size, device, axes=axes)
        self.backend.plan(batch.attention)
        logits = self.model.logits(self.model(batch)[batch.logit_rows])
        return list(logits.split([len(chunk.tokens) for chunk in chunks]))

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[len, V]: one request, prefilled in one step."""
        return self.run(Chunk(tokens, self.page_list(len(tokens))))[0]

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The likeliest ``count`` tokens after a prompt, decoded one by one."""
        pages = self.page_list(len(tokens) + count)
        answer = [int(self.run(Chunk(tokens, pages))[0][-1].argmax())]
        while len(answer) < count:
            chunk = Chunk(answer[-1:], pages, start=len(tokens) + len(answer) - 1)
            answer.append(int(self.run(chunk)[0][-1].argmax()))
        return answer

    def page_list(self, tokens: int, *, skip: int = 0) -> list[int]:
        """Pages for that many tokens, in descending order (so that order matters), past the ``skip`` last ones."""
        count = -(-tokens // self.page_size)
        last = self.pages - 1 - skip
        assert count <= last, f"{tokens} tokens need more than the {self.pages} pages of this harness"
        return list(range(last, last - count, -1))


def load_model(
    checkpoint: str | Path,
    factory: Callable[..., Model],
    *,
    dtype: torch.dtype = torch.float32,
    quant: QuantMethod | None = None,
    make_attention: MakeAttention = ReferenceAttention,
    options: object = None,
    page_size: int = 4,
    pages: int = 512,
    device: torch.device | str = "cpu",
) -> Harness:
    """Build a model as the engine does and load a checkpoint folder into it.

    Parameters are NaN until they are loaded, so that one that nothing fills shows.

    factory: a model plugin's. quant: None is full precision. make_attention: from an AttentionContext.
    Raises whatever the model, the method and the loader raise.
    """
    opened = open_checkpoint(ModelConfig(path=str(checkpoint)))
    groups = {group.name: group for group in factory.memory_groups(opened.config)}  # type: ignore[attr-defined]
    backend = make_attention(AttentionContext(torch.device(device), dtype, page_size, groups))
    weights, method = WeightMap(), quant or FullPrecision()
    context = BuildContext(
        dtype=dtype,
        device=torch.device(device),
        quant=method,
        attention=backend,
        weights=weights,
        max_context=(pages - 1) * page_size,
        options=options,
    )
    model = factory(opened.config, context).eval()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.fill_(float("nan"))
    load_weights(opened, weights, progress=False)
    unfilled = tuple(name for name, parameter in model.named_parameters() if parameter.isnan().any())
    for module in model.modules():
        if isinstance(module, Linear):
            module.finalize()
    method.finalize()
    for group in groups.values():
        backend.allocate(group, pages)
    return Harness(model, backend, opened.config, page_size, pages, unfilled)
