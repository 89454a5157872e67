"""The one layout of 4-bit weights that all kernels read, whatever a checkpoint's is.

A row of K weights is cut into blocks of 256 terms (the last one filled up with zeros), a block into 32 words of 32
bits: nibble j of word i is term 32 j + i of its block. So the same nibble of neighbouring words is neighbouring terms,
and shifts and masks alone bring a word into the order that tensor cores read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_K = 256
WORDS = 32
NIBBLES = 8


SYMMETRIC = 8
"""The zero point of symmetric weights."""

POINT_BITS = 31
"""Of a scale's float32: no scale of 16 bits has any of its last five, so they can hold a zero point, 0 to 16."""


@dataclass(frozen=True)
class Weight4:
    """W = (codes - zeros) * scales; made by :meth:`of`.

    words: int32 [N, blocks * 32]. scales: int32 [groups, N], the bits of float32 scales, and where ``inside`` zero
    points in the last five of them. zeros: uint8 [groups, N], where zero points are neither inside nor all 8.
    in_features: K. group: terms that share a scale: 32, 64, 128, or K.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor | None
    inside: bool
    in_features: int
    group: int

    @classmethod
    def of(cls, words: Tensor, scales: Tensor, zeros: Tensor | None, in_features: int, group: int) -> Weight4:
        """scales: [N, groups], of any type; zeros: uint8 [N, groups], or None where all are 8."""
        bits = scales.float().T.contiguous().view(torch.int32)
        points = None if zeros is None or bool((zeros == SYMMETRIC).all()) else zeros.T.contiguous()
        inside = points is not None and not bool((bits & POINT_BITS).any())
        if inside and points is not None:
            bits, points = bits | points, None
        return cls(words, bits, points, inside, in_features, group)

    @property
    def out_features(self) -> int:
        """N."""
        return len(self.words)

    @property
    def groups(self) -> int:
        """Of a row."""
        return len(self.scales)

    @property
    def kernel_group(self) -> int:
        """The group as kernels take it: one that is a whole row ends past the row, at a power of two."""
        if self.groups > 1:
            return self.group
        return max(BLOCK_K, 1 << (self.in_features - 1).bit_length())

    def scale(self, rows: slice) -> Tensor:
        """float32 [len(rows), groups]."""
        bits = self.scales[:, rows].T.contiguous()
        return (bits & ~POINT_BITS if self.inside else bits).view(torch.float32)

    def has_scales_of(self, dtype: torch.dtype) -> bool:
        """Whether all scales are numbers of that type."""
        scales = self.scale(slice(None))
        return torch.equal(scales.to(dtype).float(), scales)

    def zero(self, rows: slice) -> Tensor:
        """Zero points, float32 [len(rows), groups]."""
        if self.inside:
            return (self.scales[:, rows] & POINT_BITS).T.float()
        if self.zeros is not None:
            return self.zeros[:, rows].T.float()
        return torch.full_like(self.scales[:, rows].T, SYMMETRIC, dtype=torch.float32)


def words_of(in_features: int) -> int:
    """Words of a row."""
    return -(-in_features // BLOCK_K) * WORDS


def pack(codes: Tensor) -> Tensor:
    """uint8 [N, K], 0 to 15 -> int32 [N, words_of(K)]."""
    rows, terms = codes.shape
    blocks = -(-terms // BLOCK_K)
    if blocks * BLOCK_K != terms:
        codes = torch.nn.functional.pad(codes, (0, blocks * BLOCK_K - terms))
    parts = codes.view(rows, blocks, NIBBLES, WORDS)
    words = torch.zeros(rows, blocks, WORDS, dtype=torch.int32, device=codes.device)
    for nibble in range(NIBBLES):
        words |= parts[:, :, nibble].to(torch.int32) << 4 * nibble
    return words.view(rows, blocks * WORDS)


def unpack(words: Tensor, in_features: int) -> Tensor:
    """int32 [N, words] -> the codes, uint8 [N, K]."""
    octets = words.contiguous().view(torch.uint8).view(len(words), -1, WORDS, NIBBLES // 2)
    # [N, blocks, words, bytes of a word, halves of a byte]: the nibble's number, then the word's.
    halves = torch.stack((octets & 0xF, octets >> 4), 4)
    return halves.permute(0, 1, 3, 4, 2).flatten(1)[:, :in_features]


def dequantize(weight: Weight4, rows: slice, dtype: torch.dtype) -> Tensor:
    """[len(rows), K] in dtype, computed in float32 and rounded once."""
    numbers = unpack(weight.words[rows], weight.in_features).float().unflatten(1, (weight.groups, -1))
    numbers -= weight.zero(rows).unsqueeze(2)
    numbers *= weight.scale(rows).unsqueeze(2)
    return numbers.flatten(1).to(dtype)
