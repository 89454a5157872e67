"""What a request asks of the sampler, worked out once for its life: :class:`SampleRow`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pymllm.engine.draw import WEIGHT_ONE
from pymllm.engine.logit_edits import TokenHistory
from pymllm.sampling import SamplingParams

if TYPE_CHECKING:
    from pymllm.engine.kernels.edits import RowEdits

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy."""

NO_TOP_K = 2**31 - 1
NEVER = 2**63 - 1
_MASK64 = (1 << 64) - 1

ROW_CONSTANTS = np.dtype(
    [
        ("slope", np.float64),
        ("seed", np.uint64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("least", np.int64),
        ("repetition", np.float64),
        ("presence", np.float64),
        ("frequency", np.float64),
        ("unedited_from", np.int64),
        ("prompt_length", np.int64),
        ("truncated", np.int64),
        ("logprobs", np.int64),
    ]
)
"""What does not change in a row's life, 8 bytes a field. The first eight are what kernels read, in the order of
:mod:`pymllm.engine.kernels.layout`; floats that they use in single precision are rounded to it.

slope: -log2(e) / temperature, 0 if greedy. top_k: NO_TOP_K if off. least: the smallest weight that min_p keeps
(:class:`pymllm.engine.draw.DrawGroup`). unedited_from: the position from which on nothing changes its logits,
NEVER if something always does. truncated, logprobs: 1 if it draws with top_k, top_p or min_p; wants them."""


@dataclass(slots=True, eq=False)
class SampleRow:
    """One request's next token. Keep one for the life of a request and move ``position``: it remembers
    which tokens its penalties have counted.

    params: with defaults filled. seed: any integer. position: index of this token in the answer, from 0.
    tokens: the request's own growing list, not a copy, of which the first ``prompt_length`` are the prompt; with
    penalties, all tokens before this one must be in it (on a device with kernels it may lack those that were
    sampled there). end_token_ids: what ends the answer (eos and stop_token_ids), masked while position <
    min_tokens. edits: what kernels keep on the device to change its logits.
    """

    params: SamplingParams
    seed: int
    position: int
    tokens: list[int]
    prompt_length: int
    end_token_ids: Sequence[int] = ()
    greedy: bool = field(init=False)
    biased: bool = field(init=False)
    penalized: bool = field(init=False)
    constants: bytes = field(init=False, repr=False)
    edits: RowEdits | None = field(init=False, default=None, repr=False)
    _history: TokenHistory | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        params = self.params
        assert params.temperature is not None, "sampling params come with defaults filled"
        self.greedy = params.temperature < GREEDY_BELOW
        self.biased = bool(params.logit_bias) or params.min_tokens > 0
        self.penalized = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        self.constants = self._constants()

    @property
    def edited(self) -> bool:
        """Whether something may change its logits."""
        return self.biased or self.penalized

    def _constants(self) -> bytes:
        params = self.params
        top_k = params.top_k if params.top_k is not None and params.top_k > 0 else NO_TOP_K
        greedy = self.greedy or top_k == 1
        always_edited = self.penalized or bool(params.logit_bias)
        constants = np.zeros(1, dtype=ROW_CONSTANTS)
        constants["slope"] = 0.0 if greedy else np.float32(slope_of(params.temperature))
        constants["seed"] = self.seed & _MASK64
        constants["top_k"] = top_k
        constants["top_p"] = params.top_p
        constants["least"] = least_of(params.min_p)
        constants["repetition"] = np.float32(params.repetition_penalty)
        constants["presence"] = np.float32(params.presence_penalty)
        constants["frequency"] = np.float32(params.frequency_penalty)
        constants["unedited_from"] = NEVER if always_edited else params.min_tokens
        constants["prompt_length"] = self.prompt_length
        truncates = top_k != NO_TOP_K or params.top_p != 1.0 or least_of(params.min_p) > 1
        constants["truncated"] = truncates and not greedy
        constants["logprobs"] = params.logprobs is not None
        return constants.tobytes()

    def additions(self, position: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
        """What is added to its logits at a position of the answer: token ids, int64, and values, float32; -inf for
        end tokens before min_tokens. An id may occur twice. Raises ValueError for a logit_bias outside the
        vocabulary (the engine refuses such a request at the door)."""
        bias = self.params.logit_bias or {}
        forbidden = set(self.end_token_ids) if position < self.params.min_tokens else set()
        ends = [token for token in forbidden if 0 <= token < vocab_size]
        ids = np.array([*bias.keys(), *ends], dtype=np.int64)
        if bias and (min(bias) < 0 or max(bias) >= vocab_size):
            raise ValueError(f"logit_bias holds a token id outside the vocabulary of {vocab_size}")
        return ids, np.array([*bias.values(), *[-np.inf] * len(ends)], dtype=np.float32)

    def update_history(self, vocab_size: int) -> TokenHistory:
        """The tokens so far, counted up to the end of ``tokens``."""
        if self._history is None:
            self._history = TokenHistory(self.tokens[: self.prompt_length], vocab_size)
        self._history.update(self.tokens, self.prompt_length)
        return self._history


def row_constants(rows: Sequence[SampleRow]) -> np.ndarray:
    """[S] ROW_CONSTANTS."""
    return np.frombuffer(b"".join([row.constants for row in rows]), dtype=ROW_CONSTANTS)


def slope_of(temperature: float | None) -> float:
    """-log2(e) / temperature: exponents of 2 per unit of logit."""
    assert temperature is not None, "sampling params come with defaults filled"
    return -math.log2(math.e) / temperature


def least_of(min_p: float | None) -> int:
    """The smallest weight that min_p keeps, from 1 to WEIGHT_ONE."""
    assert min_p is not None, "sampling params come with defaults filled"
    return max(math.ceil(min_p * WEIGHT_ONE), 1)
