"""What a step's rows ask of the sampler, as tensors: :class:`SampleRow` and :class:`SamplingBatch`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pymllm.engine.draw import CANDIDATES, WEIGHT_ONE, DrawGroup, Kind
from pymllm.engine.fast_parameters import NEVER, NO_TOP_K, ROW_CONSTANTS
from pymllm.engine.kernels.availability import has_kernels
from pymllm.engine.kernels.parameters import RowParameters
from pymllm.engine.kernels.penalties import PenaltyCounts
from pymllm.engine.logit_edits import LogitEdits, TokenHistory
from pymllm.engine.logprobs import LogprobPlan
from pymllm.engine.philox import uniforms
from pymllm.engine.transfer import row_index, rows_at_once, to_device
from pymllm.sampling import SamplingParams

_MASK64 = (1 << 64) - 1

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy."""


class _Watched:
    """Lets a row with slots be watched for its end (dataclasses can ask for it from Python 3.11 on)."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True, eq=False)
class SampleRow(_Watched):
    """One request's next token. Keep one for the life of a request and move ``position``: it remembers
    which tokens its penalties have counted.

    params: with defaults filled. seed: any integer. position: index of this token in the answer, from 0.
    prompt_ids, output_ids: the request's own growing lists, not copies; all tokens before this one must be
    in them if the request has penalties. end_token_ids: what ends the answer (eos and stop_token_ids),
    masked while position < min_tokens.
    """

    params: SamplingParams
    seed: int
    position: int
    prompt_ids: list[int]
    output_ids: list[int]
    end_token_ids: Sequence[int] = ()
    greedy: bool = field(init=False)
    edited: bool = field(init=False)
    penalized: bool = field(init=False)
    plain: bool = field(init=False)
    constants: bytes = field(init=False, repr=False)
    _history: TokenHistory | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        params = self.params
        assert params.temperature is not None, "sampling params come with defaults filled"
        self.greedy = params.temperature < GREEDY_BELOW
        self.penalized = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        self.edited = self.penalized or bool(params.logit_bias) or params.min_tokens > 0
        self.plain = self.greedy and not self.edited and params.logprobs is None
        self.constants = self._constants()

    def _constants(self) -> bytes:
        params = self.params
        top_k = params.top_k if params.top_k is not None and params.top_k > 0 else NO_TOP_K
        greedy = self.greedy or top_k == 1
        truncated = not greedy and (top_k != NO_TOP_K or params.top_p != 1.0 or least_of(params.min_p) > 1)
        never = truncated or self.penalized or bool(params.logit_bias) or params.logprobs is not None
        constants = np.zeros(1, dtype=ROW_CONSTANTS)
        constants["seed"] = self.seed & _MASK64
        constants["plain_from"] = NEVER if never else params.min_tokens
        constants["slope"] = 0.0 if greedy else slope_of(params.temperature)
        constants["top_k"] = top_k
        constants["top_p"] = params.top_p
        constants["least"] = least_of(params.min_p)
        return constants.tobytes()

    def update_history(self, vocab_size: int) -> TokenHistory:
        """The tokens so far, counted up to the end of ``output_ids``."""
        if self._history is None:
            self._history = TokenHistory(self.prompt_ids, vocab_size)
        self._history.update(self.output_ids)
        return self._history


def slope_of(temperature: float | None) -> float:
    """-log2(e) / temperature: exponents of 2 per unit of logit."""
    assert temperature is not None, "sampling params come with defaults filled"
    return -math.log2(math.e) / temperature


def least_of(min_p: float | None) -> int:
    """The smallest weight that min_p keeps, from 1 to WEIGHT_ONE."""
    assert min_p is not None, "sampling params come with defaults filled"
    return max(math.ceil(min_p * WEIGHT_ONE), 1)


@dataclass(frozen=True)
class SamplingBatch:
    """A step's rows, ready for :func:`pymllm.engine.sampler.sample`.

    size: rows S. any_greedy: whether some row takes the argmax. edits: changes to the logits. draws: the
    rows that are not greedy, grouped by what they need. logprobs: the rows that want log-probabilities.
    Each of these three is empty or None when no row needs it. parameters: on a device with kernels, all that
    a draw needs; ``any_greedy`` and ``draws`` are not looked at then.
    """

    size: int
    any_greedy: bool = True
    edits: LogitEdits | None = None
    draws: tuple[DrawGroup, ...] = ()
    logprobs: LogprobPlan | None = None
    parameters: RowParameters | None = None

    @classmethod
    def build(
        cls,
        rows: Sequence[SampleRow],
        vocab_size: int,
        device: torch.device,
        counts: PenaltyCounts | None = None,
    ) -> SamplingBatch:
        """Host work of a step; copies to the device do not wait for it. Raises ValueError for a logit_bias
        outside the vocabulary (the engine refuses such a request at the door).

        counts: on a device with kernels, keeps what penalties need there, so that ``output_ids`` may lack the
        tokens of steps in flight; without it they must be complete."""
        edits = LogitEdits.collect(rows, vocab_size, device, counts) if any(row.edited for row in rows) else None
        logprobs = LogprobPlan.collect([row.params.logprobs for row in rows], vocab_size, device)
        if has_kernels(device):
            parameters = RowParameters.collect(rows, vocab_size, device)
            return cls(size=len(rows), edits=edits, logprobs=logprobs, parameters=parameters)
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
