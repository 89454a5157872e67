"""A step's rows as a table on the device, for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.kernels.edits import EditTables
from pymllm.engine.kernels.layout import BIAS, CONSTANTS, COUNTS, POSITION, ROWS, Need
from pymllm.engine.sample_row import ROW_CONSTANTS, SampleRow, row_constants
from pymllm.engine.transfer import to_device


class Packer:
    """Writes tables of :mod:`pymllm.engine.kernels.layout`, over arrays. One object serves one stream."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._edits = EditTables(vocab_size, device)

    def pack(self, table: np.ndarray, rows: Sequence[SampleRow], constants: np.ndarray, positions: np.ndarray) -> Need:
        """Fill the first S columns with what S rows ask for, and say what they need; cells that the need does not
        look at are left as they are. The step that this is for must follow: it is taken to count its tokens.

        table: [ROWS, >= S] int64. constants: [S] ``row_constants``. positions: [S] int64, in the answers."""
        count = len(rows)
        cells = constants.view(np.int64).reshape(count, ROW_CONSTANTS.itemsize // 8)
        table[:CONSTANTS, :count] = cells[:, :CONSTANTS].T
        table[POSITION, :count] = positions
        edited = np.flatnonzero(positions < constants["unedited_from"])
        if len(edited):
            self._pack_edits(table[:, :count], edited, [rows[i] for i in edited.tolist()], positions[edited].tolist())
            return Need.edited
        return Need.truncated if constants["truncated"].any() else Need.plain

    def _pack_edits(self, table: np.ndarray, columns: np.ndarray, rows: list[SampleRow], positions: list[int]) -> None:
        biases, counts = [], []
        for row, position in zip(rows, positions):
            edits = row.edits
            if edits is None or edits.next != position or row.biased:
                edits = self._edits.ready(row, position)
            # Before the step is launched: if that fails, the counts are not what they should be.
            edits.next = position + 1
            biases.append(edits.bias_at)
            counts.append(edits.counts_at)
        table[BIAS : COUNTS + 1] = 0
        table[BIAS, columns] = biases
        table[COUNTS, columns] = counts


@dataclass(frozen=True)
class RowParameters:
    """table: [ROWS, S] int64, on the device. need: of its rows."""

    table: Tensor
    need: Need

    @classmethod
    def collect(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> RowParameters:
        """Host work of a step; one copy, which the host does not wait for."""
        table = np.zeros((ROWS, len(rows)), dtype=np.int64)
        positions = np.array([row.position for row in rows], dtype=np.int64)
        need = Packer(vocab_size, device).pack(table, rows, row_constants(rows), positions)
        return cls(to_device(table, device), need)

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits: [S, V] of any float type -> tokens [S] int64 and valid [S] bool; waits for nothing."""
        from pymllm.engine.kernels.launch import Scratch, draw_rows, results_like

        tokens, valid = results_like(logits)
        scratch = Scratch(len(logits), logits.shape[1], logits.device)
        draw_rows(logits, self.table, self.need, tokens, valid, scratch)
        return tokens, valid.bool()
