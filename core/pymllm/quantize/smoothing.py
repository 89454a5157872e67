"""Smoothing of activations that are quantized per token, ahead of rounding."""

from __future__ import annotations

from typing import Any

from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

LEAST = 0.01
"""Of the mean range: a channel that calibration hardly sees is not blown up."""


class ActivationSmoothing(SmoothQuantModifier):
    """SmoothQuant (Xiao et al. 2023) with s = range(x) ** smoothing_strength, without the weights' part.

    For the inputs of the last layer of a gated block, where single channels of single tokens are hundreds of times the
    median (Yang et al. 2024, "Mitigating Quantization Errors Due to Activation Spikes in GLU-Based LLMs"): the weights'
    part, which is to make the columns of a weight alike, makes the spikes larger.
    """

    def _calculate_smoothing_scales(self, balance_layers: list[Any], activation_scales: Any) -> Any:
        least = LEAST * activation_scales.mean()
        return activation_scales.clamp(min=least) ** self.smoothing_strength
