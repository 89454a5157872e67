"""The table in which kernels find what each row of a batch asks for: [ROWS, rows of the batch or more], 8 bytes a cell.

The first eight rows are the fields of :data:`pymllm.engine.sample_row.ROW_CONSTANTS` of the same name; SLOPE, TOP_P
and the penalties are float64, the others int64. POSITION: index of the token in the answer; with SEED, it makes the
row's random number. BIAS, COUNTS: addresses of the row's edits on the device (:mod:`.edits`), 0 for none.
"""

from __future__ import annotations

from enum import Enum

SLOPE, SEED, TOP_K, TOP_P, LEAST, REPETITION, PRESENCE, FREQUENCY, POSITION, BIAS, COUNTS = range(11)
CONSTANTS = FREQUENCY + 1
ROWS = COUNTS + 1

IN_PROMPT = 1 << 30
"""Bit of a count that says that the token is in the prompt; the bits below count it in the answer."""


class Need(Enum):
    """What a batch needs: the passes of each serve the rows of those before as well, with the same tokens.

    plain: greedy, or a temperature alone. truncated: top_k, top_p, min_p. edited: also penalties, logit_bias and
    the mask of min_tokens.
    """

    plain = "plain"
    truncated = "truncated"
    edited = "edited"
