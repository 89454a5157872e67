"""Qwen3-VL, dense: a Qwen3 decoder with positions in three axes, and the features of a vision tower in its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pymllm.errors import CheckpointError
from pymllm.interfaces import MediaItem
from pymllm.layers import BuildContext, DecoderConfig, DenseModel, optional
from pymllm_model_qwen3.model import Qwen3Attention
from pymllm_model_qwen3_vl.sizes import VisionSizes
from pymllm_model_qwen3_vl.vision import VisionTower


class Qwen3VLModel(DenseModel):
    """``Qwen3VLForConditionalGeneration``."""

    position_axes: ClassVar[int] = 3

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        text, sizes, vision = _text(config), self.sizes(config), VisionSizes.read(config)
        if vision.out_hidden != sizes.hidden:
            raise CheckpointError(
                f"vision_config.out_hidden_size {vision.out_hidden} is not text_config.hidden_size {sizes.hidden}"
            )
        if len(vision.levels) > sizes.layers:
            raise CheckpointError(f"there are {len(vision.levels)} deepstack levels, but {sizes.layers} layers")
        super().__init__(
            sizes,
            text,
            context,
            partial(Qwen3Attention, sizes=sizes, bias=optional(text, "attention_bias", False)),
            name="model.language_model",
            rope=context.multi_rope(text, sizes.head_dim),
            media_levels=1 + len(vision.levels),
        )
        self.vision = VisionTower(context.at("model.visual"), vision)
        self._vision_sizes = vision
        self._device = context.device

    @property
    def media_tower(self) -> nn.Module:
        return self.vision

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> DecoderConfig:
        # transformers' Qwen3VLTextConfig has 128 where a config does not say, and ties by the outer config alone.
        return replace(
            DecoderConfig.read(_text(config), head_dim=128), tied=optional(config, "tie_word_embeddings", False)
        )

    def encode_media(self, items: Sequence[MediaItem]) -> list[Tensor]:
        if not items:
            return []
        features = self.vision(items)
        if len(items) == 1:
            return [features]
        merge = self._vision_sizes.merge
        counts = [t * h * w // merge**2 for t, h, w in (item.grid for item in items)]
        # A view would keep the features of all as long as one is kept.
        return [part.clone() for part in features.split(counts)]

    def example_media(self, tokens: int) -> MediaItem:
        """One picture, as square as can be: attention inside it takes the most."""
        vision = self._vision_sizes
        height = isqrt(tokens)
        width = ceil(tokens / height)
        shape = (1, height * vision.unit, width * vision.unit, 3)
        pixels = torch.zeros(shape, dtype=torch.uint8, device=self._device)
        return MediaItem("image", pixels, (1, height * vision.merge, width * vision.merge))


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise CheckpointError("the checkpoint's config has no 'text_config': it must hold one to be served")
    return text
