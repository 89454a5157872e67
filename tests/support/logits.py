"""Logits of an engine, as its log-probabilities tell of them, against transformers' in float32 and in bfloat16.

An engine answers greedily and tells of the likeliest 100 tokens at every position of prompt and answer; transformers
reads the same tokens in one pass. Compared are, at every position, the 50 tokens that are likeliest in float32; and in
the prompt the token that follows, a random one in a random prompt, so that all parts of the vocabulary are looked at.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engines import greedy
from pymllm.engine.client import EngineClient
from pymllm.engine.messages import EngineRequest, TokenLogprobs, TokenOutput

SHOWN, COMPARED = 100, 50
FOUND = 0.98
"""Share of what is compared that the engine must tell of. In bfloat16 many logits are equal, and of equals it names
those of small ids: a few of the likeliest 50 may not be among its likeliest 100."""


@dataclass(frozen=True)
class Answer:
    """A prompt and its answer, one list, and what the engine said of every token but the first."""

    tokens: list[int]
    prompt_length: int
    scores: list[TokenLogprobs]


@dataclass(frozen=True)
class Difference:
    """Sums of squares over ``count`` compared log-probabilities. ours: engine - float32; theirs: transformers in
    bfloat16 - float32; size: of as many logits in float32, around their mean."""

    ours: float = 0.0
    theirs: float = 0.0
    size: float = 0.0
    count: int = 0

    def __add__(self, other: Difference) -> Difference:
        sums = (self.ours + other.ours, self.theirs + other.theirs, self.size + other.size)
        return Difference(*sums, self.count + other.count)

    @property
    def error(self) -> float:
        """Of the engine, relative to the logits."""
        return (self.ours / self.size) ** 0.5

    @property
    def usual(self) -> float:
        """The same of transformers in bfloat16."""
        return (self.theirs / self.size) ** 0.5

    @property
    def usual_rms(self) -> float:
        """Of transformers in bfloat16, of a log-probability."""
        return (self.theirs / self.count) ** 0.5


def answer(client: EngineClient, prompts: Sequence[list[int]], count: int) -> list[Answer]:
    """Answers of ``count`` tokens to prompts that reach the engine together."""
    arrived: queue.SimpleQueue[TokenOutput] = queue.SimpleQueue()
    sampling = greedy(count, logprobs=SHOWN, prompt_logprobs=SHOWN)
    with client.together():
        for number, prompt in enumerate(prompts):
            client.submit(EngineRequest(id=str(number), token_ids=prompt, sampling=sampling), arrived.put)
    tokens = [list(prompt) for prompt in prompts]
    scores: list[list[TokenLogprobs]] = [[] for _ in prompts]
    left = len(prompts)
    while left:
        output = arrived.get(timeout=120)
        assert output.error is None, output.error
        number = int(output.id)
        scores[number] += [one for one in output.prompt_logprobs or () if one is not None]
        scores[number] += output.logprobs or ()
        tokens[number] += output.token_ids
        left -= output.finish_reason is not None
    return [Answer(*parts) for parts in zip(tokens, map(len, prompts), scores)]


class References:
    """transformers' model in float32 and in bfloat16, with the same weights, which are exact in bfloat16. Buffers stay
    as they are: the frequencies of the rotary embedding are float32 in both, as transformers loads a model."""

    def __init__(self, model: nn.Module, device: str) -> None:
        self.exact: Any = model.to(device).eval()
        _cast_parameters(self.exact, torch.bfloat16)
        self.rounded: Any = copy.deepcopy(self.exact)
        _cast_parameters(self.exact, torch.float32)
        self._device = device

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        """[L, V] float32 of the tokens in both."""
        ids = torch.tensor([tokens], device=self._device)
        return self.exact(ids).logits[0].float(), self.rounded(ids).logits[0].float()


def _cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def differences(references: References, answer: Answer) -> tuple[Difference, Difference]:
    """Of the prompt and of the answer."""
    exact, rounded = references.logits(answer.tokens[:-1])
    assert len(answer.scores) == len(exact), "a score for every token but the first"
    likeliest = exact.topk(COMPARED).indices
    following = torch.tensor(answer.tokens[1:], device=exact.device)[:, None]
    tops = [[one.top.get(token, nan) for token in row] for one, row in zip(answer.scores, likeliest.tolist())]
    ours = torch.tensor([[*top, one.logprob] for top, one in zip(tops, answer.scores)], device=exact.device)
    told = ours.isfinite()
    assert told.float().mean() > FOUND, f"too few of the likeliest {COMPARED} are among the engine's {SHOWN}"
    ids = torch.cat([likeliest, following], -1)
    right, usual = (torch.log_softmax(logits, -1).gather(1, ids) for logits in (exact, rounded))
    size = (exact - exact.mean(-1, keepdim=True)).square().mean(-1, keepdim=True).expand_as(ids)
    parts = [part.where(told, 0.0) for part in ((ours - right).square(), (usual - right).square(), size)]
    cut = answer.prompt_length - 1

    def over(rows: slice, columns: slice) -> Difference:
        sums = [float(part[rows, columns].double().sum()) for part in parts]
        return Difference(*sums, int(told[rows, columns].sum()))

    # The engine chose what follows in its answer, perhaps for its error: it says nothing of errors in general.
    return over(slice(cut), slice(None)), over(slice(cut, None), slice(COMPARED))


def between(one: Sequence[Answer], other: Sequence[Answer]) -> float:
    """Root mean square of what two engines' log-probabilities differ by, of the tokens that both tell of, at the
    positions with the same tokens before them."""
    squares, count = 0.0, 0
    for a, b in zip(one, other):
        for place, (x, y) in enumerate(zip(a.scores, b.scores)):
            if a.tokens[: place + 1] != b.tokens[: place + 1]:
                break
            found = [(value - y.top[token]) ** 2 for token, value in x.top.items() if token in y.top]
            squares, count = squares + sum(found), count + len(found)
    return (squares / count) ** 0.5


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> None:
    """Weights under which no part of the model can be left out unnoticed: projections keep the size of what passes
    through them, attention is selective, norms differ from one, and logits spread by about 2.5."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.copy_(0.75 + torch.rand(parameter.shape, generator=generator))
        elif name.endswith("norm.weight"):
            parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
        else:
            terms = parameter.shape[1]
            gain = 2.5 if "embed" in name or "lm_head" in name else 1.5 if "q_proj" in name else 1.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * gain * terms**-0.5)


def save(config: Any, folder: Path, seed: int) -> Path:
    """A random checkpoint in bfloat16, of a transformers configuration."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model, seed)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
