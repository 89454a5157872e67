"""Temperature, top_k, top_p, min_p, and one draw per row.

A token's weight is floor(2**42 exp((logit - max) / temperature)), an integer. Sums of integers are exact
in any order, so a row's draw does not depend on the batch or the order of a reduction, a token of weight
zero (probability below 2**-42 of the likeliest) is never drawn, and no rounding can run off the end.

Tokens are ranked by logit, equal ones by id, the lower first (as argmax does): top_k keeps exactly k, and
top_k = 1 is greedy. top_p keeps a token while the mass ranked before it, of what top_k kept, is below
top_p. min_p keeps tokens of at least min_p times the likeliest one's probability. That is the order of
transformers' ``generate`` (vLLM cuts by min_p first). The draw is the inverse CDF over the kept tokens in
order of id.

Shape suffixes in docstrings: R rows of a group, V vocabulary, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pymllm.engine.rank_select import select_by_bin, select_by_radix

WEIGHT_ONE = 1 << 42
"""Weight of the likeliest token. V x WEIGHT_ONE must fit 63 bits: at most 2**21 - 1 tokens."""

CANDIDATES = 256
"""How many top tokens are looked at before the whole vocabulary is."""

Kind = Literal["whole", "top_k", "top_p", "select"]

_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1
_MAGNITUDE = 0x7FFFFFFF


@dataclass(frozen=True)
class DrawGroup:
    """Rows that are drawn the same way. Tensors are [R, 1].

    kind: "whole" has neither top_k nor top_p; "top_k" (perhaps with top_p) and "top_p" start from the
    candidates; "select" (any of them) goes over the whole vocabulary and needs no answer from the device.
    rows: index of the batch. slope: float32, -log2(e) / temperature. top_p, number (uniform in [0, 1)):
    float64. top_k: int64, V is off. least: int64, smallest kept weight, >= 1. any_*: whether some row uses it.
    """

    kind: Kind
    rows: Tensor | slice
    slope: Tensor
    top_p: Tensor
    number: Tensor
    top_k: Tensor
    least: Tensor
    any_top_k: bool
    any_top_p: bool
    any_min_p: bool

    @classmethod
    def whole(cls, slope: Tensor, number: Tensor) -> DrawGroup:
        """All rows of a batch, with a temperature alone. slope: [R] float32; number: [R] float64."""
        ones = torch.ones_like(number)[:, None]
        return cls(
            kind="whole",
            rows=slice(None),
            slope=slope[:, None],
            top_p=ones,
            number=number[:, None],
            top_k=ones.long(),
            least=ones.long(),
            any_top_k=False,
            any_top_p=False,
            any_min_p=False,
        )

    def take(self, index: Tensor | slice, kind: Kind, rows: Tensor | slice) -> DrawGroup:
        """The given rows of this group, as a group of a kind whose place in the batch is ``rows``."""
        names = ("slope", "top_p", "number", "top_k", "least")
        return replace(self, kind=kind, rows=rows, **{name: getattr(self, name)[index] for name in names})


def draw(logits: Tensor, peak: Tensor, group: DrawGroup) -> Tensor:
    """Draw a token of each row. logits: [R, V] float32; peak: [R, 1], their maxima -> [R] int64.

    A row whose peak is not finite gets any token of the vocabulary and disturbs no other.
    """
    if group.kind in ("top_k", "top_p"):
        return _draw_from_candidates(logits, peak, group)
    distance = peak - logits
    weights = _weigh(distance, group)
    if group.kind == "select":
        weights = _truncate(distance, weights, group)
    if group.any_min_p:
        weights = weights * (weights >= group.least)
    return _pick(weights, group.number).squeeze(1)


def _weigh(distance: Tensor, group: DrawGroup) -> Tensor:
    """Distances below the peak, float32, to weights, int64, of one shape."""
    return (distance * group.slope).exp2_().mul_(float(WEIGHT_ONE)).long()


def _pick(weights: Tensor, number: Tensor) -> Tensor:
    """Inverse CDF: the first place whose running sum exceeds number x total. [R, N] -> [R, 1]."""
    running = weights.cumsum(-1)
    total = running[:, -1:]
    target = torch.minimum((number * total.double()).long(), total - 1)
    return torch.searchsorted(running, target, right=True).clamp_max_(weights.shape[1] - 1)


def _share(total: Tensor, top_p: Tensor) -> Tensor:
    """The least integer mass that is top_p of the total; exactly the total for top_p = 1."""
    return torch.where(top_p < 1.0, (top_p * total.double()).ceil().long(), total)


def _draw_from_candidates(logits: Tensor, peak: Tensor, group: DrawGroup) -> Tensor:
    """``draw`` by way of the top C tokens; rows that need more are found and drawn by selection."""
    values, ids = logits.topk(CANDIDATES, dim=-1)
    distance, ids = _rank(peak - values, ids)
    weights = _weigh(distance, group)
    if group.any_top_k:
        weights = weights * (torch.arange(CANDIDATES, device=ids.device) < group.top_k)
    running = weights.cumsum(-1)
    total = running[:, -1:] if group.any_top_k else _weigh(peak - logits, group).sum(-1, keepdim=True)
    kept = (weights >= group.least) & (running - weights < _share(total, group.top_p))
    tokens = _pick_by_id(weights, ids, kept, group.number)

    # What is kept is a prefix of the ranking. If it ends above the last candidate's logit, no token outside
    # the candidates can belong to it; nor can one if the candidates hold the whole mass.
    last = distance.gather(1, (kept.sum(-1, keepdim=True) - 1).clamp_min_(0))
    enough = (last < distance[:, -1:]) | ~torch.isfinite(peak)
    if not group.any_top_k:
        enough |= running[:, -1:] == total
    if not enough.all():
        rest = (~enough).squeeze(1).nonzero().squeeze(1)
        tokens[rest] = draw(logits[rest], peak[rest], group.take(rest, "select", rest))
    return tokens


def _rank(distance: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sort candidates by distance, equal ones by id."""
    keys = ((_bits(distance).long() << _ID_BITS) | ids).sort(dim=-1).values
    return (keys >> _ID_BITS).int().view(torch.float32), keys & _ID_MASK


def _bits(distance: Tensor) -> Tensor:
    """Non-negative floats as integers of the same order, int32 (a NaN becomes the largest)."""
    return distance.view(torch.int32) & _MAGNITUDE


def _pick_by_id(weights: Tensor, ids: Tensor, kept: Tensor, number: Tensor) -> Tensor:
    """Draw among kept candidates, in order of id. [R, C] -> [R] int64."""
    ordered, order = ids.sort(dim=-1)
    weights = (weights * kept).gather(1, order)
    return ordered.gather(1, _pick(weights, number)).squeeze(1)


def _truncate(distance: Tensor, weights: Tensor, group: DrawGroup) -> Tensor:
    """top_k, then top_p over all of [R, V]: the weights, zero where a token is not kept."""
    keys = _bits(distance)
    select = select_by_bin if keys.device.type == "cpu" else select_by_radix
    if group.any_top_k:
        weights = weights * select(keys, torch.ones_like(weights), group.top_k)
    if group.any_top_p:
        weights = weights * select(keys, weights, _share(weights.sum(-1, keepdim=True), group.top_p))
    return weights
