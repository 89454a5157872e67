"""The inputs of a step with prefill chunks: packed on the host, sent in two copies."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.batch import StepArrays
from pymllm.engine.cuda.packed import Field, PackedArrays
from pymllm.engine.plan import StepPlan
from pymllm.interfaces.attention import AttentionBatch
from pymllm.interfaces.model import ForwardBatch


def token_fields(size: int) -> list[Field]:
    """Token ids, positions and slots of a step that is padded to ``size`` tokens."""
    return [(size, np.int64)] * 3


class StepInputs:
    """Device memory for the inputs of one step at a time.

    tokens: of the largest size that a graph was captured for, whose inputs stay where they are.
    """

    def __init__(self, tokens: int, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        self._static = PackedArrays(device, 32 * max(tokens, 1))
        self._tokens = PackedArrays(device)
        self._lists = PackedArrays(device)

    def static(self, size: int) -> list[Tensor]:
        """Token ids, positions and slots, [size] int64 each, where a graph of that size reads them."""
        return self._static.views(token_fields(size))

    def send(self, plan: StepPlan, size: int | None) -> ForwardBatch:
        """Pack a plan and send it, without waiting. size: of the graph that is to be replayed, to which the batch, but
        not its attention, is padded; None: no graph."""
        arrays = StepArrays.build(plan, self._page_size)
        count, requests, sampled = len(arrays.tokens), len(arrays.ends), len(arrays.logit_rows)
        packed = self._tokens if size is None else self._static
        by_token = (arrays.tokens, arrays.positions, arrays.slots)
        tokens, positions, slots = packed.send(by_token, token_fields(size or count))
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
        return ForwardBatch(token_ids=tokens, positions=positions, logit_rows=logit_rows, attention=attention)
