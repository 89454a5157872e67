"""The inputs of a step with prefill chunks: packed on the host, sent in two copies."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.batch import StepArrays
from pymllm.engine.cuda.packed import Field, PackedArrays
from pymllm.engine.plan import StepPlan
from pymllm.interfaces.attention import AttentionBatch
from pymllm.interfaces.media import MediaRows
from pymllm.interfaces.model import ForwardBatch


def token_fields(size: int, axes: int = 1) -> list[Field]:
    """Token ids, positions and slots of a step that is padded to ``size`` tokens. axes: numbers of a position."""
    return [(size, np.int64), (axes * size, np.int64), (size, np.int64)]


def token_arrays(arrays: StepArrays, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What fills those fields."""
    positions = arrays.positions
    if positions.ndim > 1:
        padded = np.zeros((len(positions), size), dtype=np.int64)
        padded[:, : positions.shape[1]] = positions
        positions = padded.ravel()
    return arrays.tokens, positions, arrays.slots


def by_axis(positions: Tensor, axes: int) -> Tensor:
    """The field of positions as a model takes it: [T], or [axes, T]."""
    return positions if axes == 1 else positions.view(axes, -1)


class StepInputs:
    """Device memory for the inputs of one step at a time.

    tokens: of the largest size that a graph was captured for, whose inputs stay where they are. axes: numbers of a
    token's position.
    """

    def __init__(self, tokens: int, page_size: int, device: torch.device, axes: int = 1) -> None:
        self._page_size = page_size
        self._axes = axes
        self._static = PackedArrays(device, 8 * (axes + 3) * max(tokens, 1))
        self._tokens = PackedArrays(device)
        self._lists = PackedArrays(device)

    def static(self, size: int) -> list[Tensor]:
        """Token ids, positions and slots, int64, where a graph of that size reads them: [size], [size] or [axes, size],
        and [size]."""
        tokens, positions, slots = self._static.views(token_fields(size, self._axes))
        return [tokens, by_axis(positions, self._axes), slots]

    def send(self, plan: StepPlan, size: int | None, media: MediaRows | None = None) -> ForwardBatch:
        """Pack a plan and send it, without waiting. size: of the graph that is to be replayed, to which the batch, but
        not its attention, is padded; None: no graph. media: of the batch."""
        arrays = StepArrays.build(plan, self._page_size, self._axes)
        count, requests, sampled = len(arrays.tokens), len(arrays.ends), len(arrays.logit_rows)
        packed = self._tokens if size is None else self._static
        by_token = token_arrays(arrays, size or count)
        tokens, positions, slots = packed.send(by_token, token_fields(size or count, self._axes))
        starts, ends, table, logit_rows = self._lists.send(
            (arrays.starts, arrays.ends, arrays.table.ravel(), arrays.logit_rows),
            [(requests + 1, np.int32), (requests, np.int32), (arrays.table.size, np.int32), (sampled, np.int64)],
        )
        attention = AttentionBatch(
            query_lens=np.diff(arrays.starts).tolist(),
            context_lens=arrays.ends.tolist(),
            query_starts=starts,
            context_lens_d=ends,
            page_table=table.view(arrays.table.shape),
            slots=slots[:count],
        )
        return ForwardBatch(
            token_ids=tokens,
            positions=by_axis(positions, self._axes),
            logit_rows=logit_rows,
            attention=attention,
            media=media,
        )
