"""What config.json says of the vision side. Imports no torch: the processor reads it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymllm.errors import CheckpointError


@dataclass(frozen=True)
class VisionSizes:
    """The vision tower's sizes, in the words of ``vision_config``.

    merge: patches of a feature row, down as well as across. table: rows of the learned position table, a square.
    levels: after which blocks features for deeper layers of the language model are taken, rising.
    """

    depth: int
    hidden: int
    intermediate: int
    heads: int
    out_hidden: int
    patch: int
    temporal_patch: int
    merge: int
    table: int
    levels: tuple[int, ...]
    theta: float

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def unit(self) -> int:
        """Pixels of a feature row, down as well as across."""
        return self.patch * self.merge

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> VisionSizes:
        """Read config.json. Raises CheckpointError that names the key for what is missing or not computed."""
        vision = config.get("vision_config")
        if not isinstance(vision, Mapping):
            raise CheckpointError("the checkpoint's config has no 'vision_config': it must hold one to be served")
        for key, supported in (("hidden_act", "gelu_pytorch_tanh"), ("in_channels", 3)):
            if vision.get(key, supported) != supported:
                raise CheckpointError(f"vision_config.{key} {vision[key]!r} is not supported (supported: {supported})")
        sizes = cls(
            depth=integer(vision, "depth"),
            hidden=integer(vision, "hidden_size"),
            intermediate=integer(vision, "intermediate_size"),
            heads=integer(vision, "num_heads"),
            out_hidden=integer(vision, "out_hidden_size"),
            patch=integer(vision, "patch_size"),
            temporal_patch=integer(vision, "temporal_patch_size"),
            merge=integer(vision, "spatial_merge_size"),
            table=integer(vision, "num_position_embeddings"),
            levels=_levels(vision),
            theta=float((vision.get("rope_parameters") or {}).get("rope_theta") or 10000.0),
        )
        if sizes.hidden % (4 * sizes.heads):
            raise CheckpointError(
                f"vision_config.hidden_size {sizes.hidden} does not give {sizes.heads} heads of a multiple of 4"
            )
        return sizes


def integer(config: Mapping[str, Any], key: str) -> int:
    """A count that a config must hold. Raises CheckpointError for anything but an integer of at least 1."""
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"the checkpoint's config has {key} = {value!r}: it must be an integer of at least 1")
    return value


def _levels(vision: Mapping[str, Any]) -> tuple[int, ...]:
    levels = vision.get("deepstack_visual_indexes") or []
    depth = integer(vision, "depth")
    rising = all(type(level) is int for level in levels) and list(levels) == sorted(set(levels))
    if not rising or (levels and not 0 <= levels[0] <= levels[-1] < depth):
        raise CheckpointError(f"deepstack_visual_indexes {levels} are not rising indices of the {depth} blocks")
    return tuple(levels)
