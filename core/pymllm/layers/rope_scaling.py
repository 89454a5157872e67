"""The frequencies of rotary embeddings, and the ways to stretch them to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pymllm.errors import CheckpointError
from pymllm.layers.config import optional, required


@dataclass(frozen=True)
class RopeSpec:
    """inverse_frequencies: radians per token of each rotated pair; scale: factor of cosines and sines."""

    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class _Request:
    """parameters: the merged rope parameters; dim: rotated components of a head; base: theta;
    trained: max_position_embeddings, or 0; max_positions: longest context that will be served."""

    parameters: Mapping[str, Any]
    dim: int
    base: float
    trained: int
    max_positions: int

    @property
    def original(self) -> int:
        """Context length before stretching."""
        return optional(self.parameters, "original_max_position_embeddings", self.trained) or required(
            self.parameters, "original_max_position_embeddings", int
        )

    def frequencies(self) -> Tensor:
        """theta^(-2 i / dim), float32 as the models were trained."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.int64).float() / self.dim
        return 1.0 / (self.base**exponents)


def rope_spec(config: Mapping[str, Any], head_dim: int, max_positions: int) -> RopeSpec:
    """Read a config's rotary embedding.

    Both spellings are understood: ``rope_theta`` beside ``rope_scaling: {rope_type or type, factor, ...}``, and
    ``rope_parameters: {rope_type, rope_theta, ...}``. head_dim: components of a head; max_positions: longest
    context that will be served, tokens. Raises CheckpointError for an unknown type, naming it.
    """
    parameters = rope_parameters(config)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _KINDS:
        known = ", ".join(sorted(_KINDS))
        raise CheckpointError(f"the checkpoint's rope_type '{kind}' is not supported (supported: {known})")
    request = _Request(
        parameters=parameters,
        dim=int(head_dim * optional(parameters, "partial_rotary_factor", 1.0)),
        base=optional(parameters, "rope_theta", 10000.0),
        trained=optional(config, "max_position_embeddings", 0),
        max_positions=max_positions,
    )
    frequencies, scale = _KINDS[kind](request)
    return RopeSpec(tuple(frequencies.tolist()), scale)


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The old and the new spelling merged; keys of the inner mappings go before those of the outer one."""
    new = config.get("rope_parameters") or {}
    if isinstance(new.get("full_attention"), Mapping):
        new = new["full_attention"]
    outer = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    merged: dict[str, Any] = {}
    for source in (outer, new, config.get("rope_scaling") or {}):
        merged.update({key: value for key, value in source.items() if value is not None})
    # A length beside the parameters (Phi, DeepSeek) is the pre-training one and goes before theirs.
    if config.get("original_max_position_embeddings") is not None:
        merged["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return merged


def _default(request: _Request) -> tuple[Tensor, float]:
    return request.frequencies(), 1.0


def _linear(request: _Request) -> tuple[Tensor, float]:
    """Position interpolation (Chen et al. 2023)."""
    return request.frequencies() / required(request.parameters, "factor", float), 1.0


def _dynamic(request: _Request) -> tuple[Tensor, float]:
    """NTK-aware scaling that starts beyond the trained length. There it would turn keys that are already
    in the cache, so only contexts up to the trained length (where it changes nothing) are served."""
    if request.max_positions > request.trained:
        raise CheckpointError(
            f"rope_type 'dynamic' is served up to the trained {request.trained} positions: "
            f"set model.max_context to at most {request.trained}"
        )
    return _default(request)


def _llama3(request: _Request) -> tuple[Tensor, float]:
    """Llama 3.1: long waves are slowed by ``factor``, short ones kept, those between blended."""
    factor = required(request.parameters, "factor", float)
    low = required(request.parameters, "low_freq_factor", float)
    high = required(request.parameters, "high_freq_factor", float)
    frequencies = request.frequencies()
    turns = request.original * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor), 1.0


def _yarn(request: _Request) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, eqs. 19-24): waves that turn less than beta_slow times in the trained context are
    slowed by ``factor``, those that turn more than beta_fast times are kept, with a ramp over the components
    between; the attention temperature becomes a factor of cosines and sines."""
    parameters = request.parameters
    original = request.original
    factor = optional(parameters, "factor", request.trained / original)

    def component(turns: float) -> float:
        return request.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(request.base))

    first = component(optional(parameters, "beta_fast", 32.0) or 32.0)
    last = component(optional(parameters, "beta_slow", 1.0) or 1.0)
    if optional(parameters, "truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, request.dim - 1)
    ramp = (torch.arange(request.dim // 2).float() - first) / (last - first or 0.001)
    slowed = ramp.clamp(0, 1)
    frequencies = request.frequencies()
    return frequencies * (1 - slowed) + frequencies / factor * slowed, _yarn_scale(parameters, factor)


def _yarn_scale(parameters: Mapping[str, Any], factor: float) -> float:
    """YaRN eq. 22, or as the checkpoint gives it (mscale and mscale_all_dim: DeepSeek-V2)."""

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("attention_factor") is not None:
        return required(parameters, "attention_factor", float)
    above, below = (optional(parameters, key, 0.0) for key in ("mscale", "mscale_all_dim"))
    return temperature(above) / temperature(below) if above and below else temperature(1.0)


_KINDS: dict[str, Callable[[_Request], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
