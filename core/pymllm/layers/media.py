"""Where features of images and videos enter a decoder."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from pymllm.interfaces.media import MediaRows

Entry = Callable[[Tensor, MediaRows], None]
"""Overwrites the rows of media of the residual stream, [T, C]."""


class MediaPoint(nn.Module):
    """A place in a decoder where one level of features, [M, C] of [M, levels x C], enters the rows of media.

    level: 0 are what stands for embeddings; the others are added (DeepStack: Meng et al. 2024). entry: does it.
    """

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level
        self.entry: Entry = self._enter

    def forward(self, h: Tensor, media: MediaRows | None) -> Tensor:
        """h: the residual stream, [T, C], is overwritten -> the same."""
        if media is not None:
            self.entry(h, media)
        return h

    def _enter(self, h: Tensor, media: MediaRows) -> None:
        width = h.shape[1]
        features = media.features[:, self.level * width : (self.level + 1) * width]
        if self.level == 0:
            h.index_copy_(0, media.rows, features)
        else:
            h.index_add_(0, media.rows, features)
