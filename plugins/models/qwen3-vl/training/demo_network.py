"""The model: transformers' Qwen3-VL, made to take many pictures at once.

Shape letters: N pictures of a group, P patches of a picture, C and D components.
"""

from __future__ import annotations

import re
from math import pi
from typing import Any

import torch
import torch.nn.functional as F
from demo_files import VOCABULARY
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AttentionInterface, GenerationConfig, Qwen3VLConfig, Qwen3VLForConditionalGeneration

PATCH, MERGE = 16, 2


def make_model(tokenizer: Tokenizer) -> Any:
    """A random Qwen3-VL of 4.7 million parameters, in float32."""
    names = ("im_end", "endoftext", "vision_start", "vision_end", "image_pad", "video_pad")
    ids: dict[str, Any] = {name: tokenizer.token_to_id(f"<|{name}|>") for name in names}
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": ids["im_end"],
        "pad_token_id": ids["endoftext"],
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": 256,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [1, 2],
    }
    config: Any = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        tie_word_embeddings=True,
    )
    AttentionInterface.register("grouped", _grouped_attention)
    config.vision_config._attn_implementation = "grouped"
    config.text_config._attn_implementation = "sdpa"
    model: Any = Qwen3VLForConditionalGeneration(config)
    _initialize(model)
    end = [ids["im_end"], ids["endoftext"]]
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=end, pad_token_id=ids["endoftext"])
    visual = model.model.visual
    visual.patch_embed = PatchProjection(visual.patch_embed.proj)
    return model


@torch.no_grad()
def _initialize(model: Any) -> None:
    """Weights by the width of what they read; transformers' are for models ten times as wide. What is added to the
    residual stream starts smaller, by the number of additions (GPT-2, section 2.3)."""
    visual, language = model.model.visual, model.model.language_model
    for part, depth in ((visual, len(visual.blocks)), (language, len(language.layers))):
        for name, module in part.named_modules():
            if isinstance(module, nn.Linear):
                added = re.search(r"(blocks|layers)\..*(\.proj|fc2|o_proj|down_proj)$", name)
                module.weight.normal_(std=(module.in_features * (2 * depth if added else 1)) ** -0.5)
    visual.pos_embed.weight.copy_(_waves(visual.num_grid_per_side, visual.config.hidden_size))


def _waves(side: int, width: int) -> Tensor:
    """Position embeddings to begin with, [side x side, width]: half waves across and down the picture. Small random
    ones, the default, are drowned by the content, and where things are is learned late."""
    places = torch.linspace(0, 1, side)
    angles = pi * places[:, None] * torch.arange(1, width // 4 + 1)
    axis = torch.cat([angles.sin(), angles.cos()], 1) / torch.arange(1, width // 4 + 1).repeat(2).sqrt()
    down, across = axis[:, None].expand(-1, side, -1), axis[None].expand(side, -1, -1)
    return torch.cat([down, across], -1).flatten(0, 1)


class PatchProjection(nn.Module):
    """Transformers' patch embedding of a still picture: both frames of a patch are the same, so that their kernels are
    added. A matrix product, where a 3-D convolution is slow."""

    def __init__(self, proj: nn.Conv3d) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, patches: Tensor) -> Tensor:
        """[N x P, 3 x patch x patch] -> [N x P, C]."""
        return F.linear(patches, self.proj.weight.sum(2).flatten(1), self.proj.bias)


def _grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *, pictures: int, **_: Any
) -> tuple[Tensor, None]:
    """Attention inside each of the equal pictures of a group, [1, heads, N x P, D] -> [1, N x P, heads, D]."""
    each = [part[0].unflatten(1, (pictures, -1)).transpose(0, 1) for part in (query, key, value)]
    return F.scaled_dot_product_attention(*each).transpose(1, 2).flatten(0, 1)[None], None
