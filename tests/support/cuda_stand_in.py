"""What lets :class:`pymllm.engine.cuda.runner.CudaRunner` run on CPU tensors, so that its bookkeeping can be tested
without a GPU: a stand-in for what it uses of CUDA, and its two own kernels in torch.

A step is computed when it is launched; the engine still reads it later. A captured graph is the captured work, done
again, whose result goes to where the first one lay.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pymllm.engine.draw import DrawGroup, draw
from pymllm.engine.kernels.layout import (
    BIAS,
    COUNTS,
    FREQUENCY,
    IN_PROMPT,
    LEAST,
    POSITION,
    PRESENCE,
    REPETITION,
    SEED,
    SLOPE,
    TOP_K,
    TOP_P,
    Need,
)  # fmt: skip
from pymllm.engine.philox import uniforms


class _Nothing:
    """A stream or an event on which everything has happened."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


def install(patch: pytest.MonkeyPatch) -> None:
    """Until the patch is undone, the runner and what it is built from run on a CPU."""
    for name in ("zeros", "empty"):
        real = getattr(torch, name)
        patch.setattr(torch, name, lambda *size, real=real, pin_memory=False, **more: real(*size, **more))
    patch.setattr(Tensor, "pin_memory", lambda self: self)
    patch.setattr(torch.cuda, "Event", _Nothing)
    patch.setattr(torch.cuda, "current_stream", _Nothing)
    patch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    stand_ins = {
        "captured": _captured,
        "alias": lambda tensor: tensor,
        "draw_rows": draw_rows,
        "prepare_decode": _prepare,
    }
    for module in [module for name, module in sys.modules.items() if name.startswith("pymllm.engine.cuda.")]:
        for name, stand_in in stand_ins.items():
            if hasattr(module, name):
                patch.setattr(module, name, stand_in)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _captured(pool: Any, work: Callable[[], Tensor | None]) -> tuple[Callable[[], None], Tensor | None]:
    first = work()

    def replay() -> None:
        again = work()
        if first is not None:
            first.copy_(again)

    return replay, first


def _prepare(inputs, last_tokens, tables, page_size, *, token_ids, slots, context_lens, page_table) -> None:
    rows = len(token_ids)
    token, slot, position = inputs[:3, :rows]
    page_table.copy_(tables[slot])
    token_ids.copy_(torch.where(token < 0, last_tokens[slot], token))
    pages = tables[slot].gather(1, (position // page_size)[:, None]).squeeze(1)
    slots.copy_(pages * page_size + position % page_size)
    context_lens.copy_(position + 1)


def draw_rows(logits: Tensor, table: Tensor, need: Need, tokens: Tensor, valid: Tensor, scratch: object) -> None:
    """:func:`pymllm.engine.kernels.launch.draw_rows`, row by row."""
    for row, scores in enumerate(logits.float()):
        cells = table[:, row].tolist()
        real = table[:, row].contiguous().view(torch.float64)
        counts = None
        if need is Need.edited:
            counts = _at(cells[COUNTS], len(scores), ctypes.c_int32)
            scores = _edited(scores, _at(cells[BIAS], len(scores), ctypes.c_float), counts, real.float())
        peak = scores.max()
        valid[row] = int(peak.isfinite())
        token = 0
        if peak.isfinite():
            token = int(scores.argmax()) if real[SLOPE] == 0 else _drawn(scores, cells, real, need)
            if counts is not None:
                counts[token] += 1
        tokens[row] = token


def _at(address: int, size: int, kind: type) -> Tensor | None:
    if address == 0:
        return None
    return torch.from_numpy(np.ctypeslib.as_array((kind * size).from_address(address)))


def _edited(scores: Tensor, bias: Tensor | None, counts: Tensor | None, values: Tensor) -> Tensor:
    if bias is not None:
        scores = scores + bias
    if counts is not None:
        repeated = torch.where(scores > 0, scores / values[REPETITION], scores * values[REPETITION])
        scores = torch.where(counts != 0, repeated, scores)
        answered = counts % IN_PROMPT
        scores = torch.where(answered != 0, scores - (values[PRESENCE] + values[FREQUENCY] * answered), scores)
    return scores


def _drawn(scores: Tensor, cells: list[int], real: Tensor, need: Need) -> int:
    group = DrawGroup.whole(
        real[SLOPE : SLOPE + 1].float(), torch.from_numpy(uniforms([cells[SEED]], [cells[POSITION]]))
    )
    if need is not Need.plain:
        top_k, least = torch.tensor([[min(cells[TOP_K], len(scores))], [cells[LEAST]]])
        values = {"kind": "select", "top_p": real[TOP_P].view(1, 1), "top_k": top_k[None], "least": least[None]}
        group = DrawGroup(**{**vars(group), **values, "any_top_k": True, "any_top_p": True, "any_min_p": True})
    return int(draw(scores[None], scores.max().view(1, 1), group))
