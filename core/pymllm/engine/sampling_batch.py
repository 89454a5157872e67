"""What a step's rows ask of the sampler, as tensors: :class:`SamplingBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pymllm.engine.draw import CANDIDATES, DrawGroup, Kind
from pymllm.engine.kernels.availability import has_kernels
from pymllm.engine.kernels.parameters import RowParameters
from pymllm.engine.logit_edits import LogitEdits
from pymllm.engine.logprobs import LogprobPlan
from pymllm.engine.philox import uniforms
from pymllm.engine.sample_row import SampleRow, least_of, slope_of
from pymllm.engine.transfer import row_index, rows_at_once, to_device
from pymllm.sampling import SamplingParams


@dataclass(frozen=True)
class SamplingBatch:
    """A step's rows, ready for :func:`pymllm.engine.sampler.sample`.

    size: rows S. any_greedy: whether some row takes the argmax. edits: changes to the logits. draws: the
    rows that are not greedy, grouped by what they need. logprobs: the rows that want log-probabilities.
    Each of these three is empty or None when no row needs it. parameters: on a device with kernels, all that
    the choice of tokens needs; ``any_greedy``, ``edits`` and ``draws`` are not looked at then.
    """

    size: int
    any_greedy: bool = True
    edits: LogitEdits | None = None
    draws: tuple[DrawGroup, ...] = ()
    logprobs: LogprobPlan | None = None
    parameters: RowParameters | None = None

    @classmethod
    def build(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> SamplingBatch:
        """Host work of a step; copies to the device do not wait for it. The tokens must be sampled from it, once.
        Raises ValueError for a logit_bias outside the vocabulary (the engine refuses such a request at the door)."""
        logprobs = LogprobPlan.collect([row.params.logprobs for row in rows], vocab_size, device)
        if has_kernels(device):
            parameters = RowParameters.collect(rows, vocab_size, device)
            return cls(size=len(rows), logprobs=logprobs, parameters=parameters)
        edits = LogitEdits.collect(rows, vocab_size, device) if any(row.edited for row in rows) else None
        drawn = [index for index, row in enumerate(rows) if not row.greedy]
        draws = _draw_groups(rows, drawn, vocab_size, device)
        return cls(len(rows), any_greedy=len(drawn) < len(rows), edits=edits, draws=draws, logprobs=logprobs)


def _draw_groups(
    rows: Sequence[SampleRow], drawn: Sequence[int], vocab_size: int, device: torch.device
) -> tuple[DrawGroup, ...]:
    if not drawn:
        return ()
    numbers = uniforms([rows[i].seed for i in drawn], [rows[i].position for i in drawn])
    kinds: dict[Kind, list[int]] = {}
    for place, index in enumerate(drawn):
        kinds.setdefault(_kind(rows[index].params, vocab_size, device), []).append(place)
    step = rows_at_once(vocab_size, device)
    groups = []
    for kind, places in kinds.items():
        indices = [drawn[place] for place in places]
        group = _draw_group(kind, indices, numbers[places], rows, vocab_size, device)
        for start in range(0, len(indices), step):
            part = row_index(indices[start : start + step], device)
            groups.append(group.take(slice(start, start + step), kind, part))
    return tuple(groups)


def _kind(params: SamplingParams, vocab_size: int, device: torch.device) -> Kind:
    top_k = _top_k(params, vocab_size)
    if top_k == vocab_size and params.top_p == 1.0:
        return "whole"
    # On a GPU the exact selection needs no answer from the device, unlike candidates that may not suffice.
    if device.type != "cpu" or vocab_size <= CANDIDATES or CANDIDATES * 3 // 4 < top_k < vocab_size:
        return "select"
    return "top_p" if top_k == vocab_size else "top_k"


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    assert params.top_k is not None, "sampling params come with defaults filled"
    return min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size


def _draw_group(
    kind: Kind,
    indices: list[int],
    numbers: np.ndarray,
    rows: Sequence[SampleRow],
    vocab_size: int,
    device: torch.device,
) -> DrawGroup:
    params = [rows[index].params for index in indices]
    top_k = [_top_k(p, vocab_size) for p in params]
    slopes = np.array([slope_of(p.temperature) for p in params], dtype=np.float64)
    floats = np.stack([slopes, np.array([p.top_p for p in params], dtype=np.float64), numbers])
    least = np.array([least_of(p.min_p) for p in params], dtype=np.int64)
    floats_d = to_device(floats, device)[..., None]
    integers_d = to_device(np.stack([np.array(top_k, dtype=np.int64), least]), device)[..., None]
    return DrawGroup(
        kind=kind,
        rows=slice(0, 0),
        slope=floats_d[0].float(),
        top_p=floats_d[1],
        number=floats_d[2],
        top_k=integers_d[0],
        least=integers_d[1],
        any_top_k=min(top_k) < vocab_size,
        any_top_p=any(p.top_p != 1.0 for p in params),
        any_min_p=bool((least > 1).any()),
    )
