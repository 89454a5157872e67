"""A forward pass over many pictures with several questions each, which launches few kernels and never waits for the
device.

Shape letters: B sequences, L tokens of one, N pictures of a group, P patches of a picture, A tokens of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from demo_network import MERGE, PATCH
from demo_writing import IGNORED, Group, blank
from torch import Tensor, nn
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids


def patches(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [N, H, W, 3] -> [N x P, 3 x patch x patch], blocks of merge x merge patches one after another."""
    count, height, width, _ = pixels.shape
    unit = PATCH * MERGE
    blocks = pixels.view(count, height // unit, MERGE, PATCH, width // unit, MERGE, PATCH, 3)
    ordered = blocks.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(-1, 3 * PATCH * PATCH)
    return (ordered.float() / 127.5 - 1).to(dtype)


@lru_cache(maxsize=256)
def _geometry(height: int, width: int, side: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of a picture of so many patches: what transformers computes for each picture again and again."""
    grid = torch.tensor([[1, height, width]])
    corners, weights = get_vision_interpolation_indices_and_weights(
        grid, num_grid_per_side=side, mode="bilinear", align_corners=True, spatial_merge_size=MERGE
    )
    return tuple(part.to(device) for part in (get_vision_position_ids(grid, MERGE), corners, weights))  # type: ignore[return-value]


def see(model: Any, groups: Sequence[Group], device: torch.device) -> Any:
    """The vision tower's output for all pictures. Groups must be of equally many pictures."""
    visual, dtype = model.model.visual, model.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    pictures = len(groups[0].pixels)
    sizes = [(group.pixels.shape[1] // PATCH, group.pixels.shape[2] // PATCH) for group in groups]
    geometry = [_geometry(*size, visual.num_grid_per_side, device) for size in sizes]
    places, corners, weights = (torch.cat([part.repeat(pictures, 1) for part in parts]) for parts in zip(*geometry))
    lengths = torch.tensor([0, *(pictures * height * width for height, width in sizes)])
    return visual(
        torch.cat([patches(sent(group.pixels, device), dtype) for group in groups]),
        grid_thw=None,
        position_ids=places,
        interp_indices=corners,
        interp_weights=weights,
        cu_seqlens=lengths.cumsum(0),
        pictures=pictures,
    )


def answer_logits(model: Any, groups: Sequence[Group], device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits [A, V] where an answer's token comes next, and these tokens [A]."""
    text = joined(groups, model.config.text_config.pad_token_id)
    # Found here, on the host: the device need not be waited for.
    asked = (text[1].flatten() != IGNORED).nonzero()[:, 0]
    images = (text[0].flatten() == model.config.image_token_id).nonzero()[:, 0]
    text, asked, images = (sent(part, device) for part in (text, asked, images))
    tokens, targets, segments, positions = text[0].int(), text[1], text[2], text[3:].int()
    seen = see(model, groups, device)
    language = model.model.language_model
    embedded = language.embed_tokens(tokens)
    flat = embedded.flatten(0, 1)
    embedded = flat.index_copy(0, images, seen.pooler_output.to(flat.dtype)).view_as(embedded)
    hooks = [
        layer.register_forward_hook(_adds(images, features))
        for layer, features in zip(language.layers, seen.deepstack_features)
    ]
    try:
        hidden = language(
            inputs_embeds=embedded, position_ids=positions, attention_mask=_mask(segments), use_cache=False
        ).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    return model.lm_head(hidden.flatten(0, 1).index_select(0, asked)), targets.flatten()[asked].long()


def joined(groups: Sequence[Group], pad: int) -> Tensor:
    """``Group.text`` of all, as long as the longest: a multiple of 8."""
    counts = [group.text.shape[1] for group in groups]
    length = -(-max(group.text.shape[2] for group in groups) // 8) * 8
    text = torch.from_numpy(blank(sum(counts), length, pad))
    for part, group in zip(text.split(counts, 1), groups):
        part[:, :, : group.text.shape[2]] = group.text
    return text


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device; the copy is not waited for."""
    if device.type == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _adds(rows: Tensor, features: Tensor) -> Any:
    """Deepstack: adds features to those rows of a layer's output, without waiting to learn how many there are."""

    def add(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return output.flatten(0, 1).index_add(0, rows, features.to(output.dtype)).view_as(output)

    return add


def _mask(segments: Tensor) -> Tensor:
    """[B, L] -> [B, 1, L, L], true where a token (down) sees another (across)."""
    length = segments.shape[1]
    same = (segments[:, :, None] == segments[:, None, :]) | (segments[:, None, :] == 0)
    return (same & torch.ones(length, length, dtype=torch.bool, device=segments.device).tril())[:, None]
