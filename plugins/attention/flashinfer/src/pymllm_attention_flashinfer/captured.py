"""Steps that are captured in CUDA graphs: all that planning takes is made once, but for the lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from pymllm.interfaces import AttentionBatch
from pymllm_attention_flashinfer.kernels import DeviceRequests, Heads, Memory, PagedKernel, PlanCall, host
from pymllm_attention_flashinfer.requests import Ints, padded

TURNS = 2
"""Page-locked buffers of each size, used in turn: the copy of a step's lengths may still run while the next step is
planned."""


@dataclass
class Shape:
    """One shape of heads: its kernel, where it works, and how it is planned."""

    kernel: PagedKernel
    memory: Memory
    planner: PlanCall


@dataclass
class Turn:
    """Page-locked memory of a step. lens: [N] int32, of the tokens on "last pages", as tensor and array;
    plans: by shape of heads."""

    copied: Any
    lens: Tensor
    lens_array: Ints
    plans: dict[Heads, Tensor] = field(default_factory=dict)


class CapturedStep:
    """Steps that are padded to one size. What their graphs read on the device stays at its place, and what they are
    planned by on the host is written in place, so that even the arguments of planning stay.

    at: their lists on the device. table: the page table that all their steps have.
    """

    def __init__(self, batch: AttentionBatch, page_ids: Tensor, page_size: int) -> None:
        self.requests = padded(batch, page_size)
        self.table = batch.page_table
        self._page_size = page_size
        lists = (self.requests.table_starts, self.requests.last_page_lens)
        table_starts, last_page_lens = (host(array).to(page_ids.device) for array in lists)
        self.at = DeviceRequests(batch.query_starts, table_starts, last_page_lens, page_ids, batch.slots)
        self.shapes: dict[Heads, Shape] = {}
        self._turns = [self._turn() for _ in range(TURNS)]
        self._cycle = cycle(self._turns)

    def add(self, heads: Heads, kernel: PagedKernel, memory: Memory) -> None:
        """From now on, plan for a shape of heads. memory: its own, kept for good, since graphs know the address."""
        planner = kernel.planner(memory, self.requests, heads, self._page_size, True)
        self.shapes[heads] = Shape(kernel, memory, planner)
        for turn in self._turns:
            turn.plans[heads] = torch.empty(memory.ints.numel(), dtype=torch.uint8, pin_memory=True)

    def plan(self, batch: AttentionBatch) -> dict[Heads, Any]:
        """Plan a step for all shapes -> the plan of each."""
        turn = next(self._cycle)
        turn.copied.synchronize()
        self.requests.change(batch.query_lens, batch.context_lens, self._page_size)
        turn.lens_array[:] = self.requests.last_page_lens
        self.at.last_page_lens.copy_(turn.lens, non_blocking=True)
        plans = {heads: shape.planner(turn.plans[heads]) for heads, shape in self.shapes.items()}
        turn.copied.record()
        return plans

    def _turn(self) -> Turn:
        lens = torch.empty(self.requests.number, dtype=torch.int32, pin_memory=True)
        return Turn(torch.cuda.Event(), lens, lens.numpy())
