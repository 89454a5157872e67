"""The inputs of a step with prefill chunks: packed on the host, sent in two copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.batch import StepArrays
from pymllm.engine.plan import StepPlan
from pymllm.interfaces.attention import AttentionBatch
from pymllm.interfaces.model import ForwardBatch


@dataclass(frozen=True)
class MixedInputs:
    """A step on the device. batch: padded to a graph's size if it is replayed, its attention is not.
    sample_slots: [S] request slots of the rows that sample. seeds: slope [S] float32, seed and position [S] int64 for
    the FastSampler; None when some row needs more than it."""

    batch: ForwardBatch
    sample_slots: Tensor
    seeds: tuple[Tensor, Tensor, Tensor] | None


def mixed_inputs(
    plan: StepPlan,
    page_size: int,
    device: torch.device,
    static: Tensor | None,
    seeds: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
) -> MixedInputs:
    """Pack a plan and send it, without waiting.

    static: [3, size] int64, token ids, positions and slots of a graph's tokens, to be filled; None: new memory.
    seeds: slope, seed and position of the rows that sample (``fast_seeds``), or None.
    """
    arrays = StepArrays.build(plan, page_size)
    count = len(arrays.tokens)
    size = count if static is None else static.shape[1]
    sampled = len(arrays.logit_rows)
    longs = torch.zeros(3 * size + 2 * sampled, dtype=torch.int64, pin_memory=True)
    rows = longs[: 3 * size].view(3, size).numpy()
    rows[0, :count], rows[1, :count], rows[2, :count] = arrays.tokens, arrays.positions, arrays.slots
    slots = [item.request.slot for item in plan.items if item.samples]
    parts = [arrays.starts, arrays.ends, arrays.logit_rows, np.array(slots, dtype=np.int64), arrays.table.ravel()]
    ints = torch.empty(sum(map(len, parts)) + sampled, dtype=torch.int32, pin_memory=True)
    np.concatenate(parts, out=ints.numpy()[sampled:], casting="unsafe")
    if seeds is not None:
        ints.numpy()[:sampled].view(np.float32)[:] = seeds[0]
        longs.numpy()[3 * size :].view(np.uint64)[:] = np.concatenate(seeds[1:])
    if static is None:
        longs_d = longs.to(device, non_blocking=True)
        tokens, positions, kv_slots = longs_d[: 3 * size].view(3, size)
        seeds_d = longs_d[3 * size :]
    else:
        static.copy_(longs[: 3 * size].view(3, size), non_blocking=True)
        tokens, positions, kv_slots = static
        seeds_d = longs[3 * size :].to(device, non_blocking=True)
    slope, starts, ends, logit_rows, sample_slots, table = ints.to(device, non_blocking=True).split(
        [sampled, *map(len, parts)]
    )
    attention = AttentionBatch(
        query_lens=np.diff(arrays.starts).tolist(),
        context_lens=arrays.ends.tolist(),
        query_starts=starts,
        context_lens_d=ends,
        page_table=table.view(arrays.table.shape),
        slots=kv_slots[:count],
    )
    return MixedInputs(
        batch=ForwardBatch(token_ids=tokens, positions=positions, logit_rows=logit_rows, attention=attention),
        sample_slots=sample_slots,
        seeds=None if seeds is None else (slope.view(torch.float32), seeds_d[:sampled], seeds_d[sampled:]),
    )
