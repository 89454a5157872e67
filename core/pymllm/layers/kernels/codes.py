"""How vectors lie in a KV cache of ``int8`` or ``int4``: a code for each number, a scale and an offset for each vector.

A vector (the key or value of one token and head) is quantized when it is written, from the float32 values at hand:
with its least and largest number, L = 2^bits - 1 and everything but the codes rounded to what is kept,

    offset = float16(least), scale = float16((largest - least) / L),
    code = clamp(floor((x - offset) / scale + 1/2), 0, L)

and read as offset + scale x code. So a number is off by at most scale / 2, and those at the ends by what rounding moved
them besides: L times that of the scale, and that of the offset. A vector of one number has scale 0 and codes 0, and is
read as its offset: exactly that number if float16 holds it, as it does bfloat16 of ordinary size. Numbers beyond
float16, infinities too, are first cut off at 65504. A vector with a NaN in it is read as nothing but NaN.

Codes of 8 bits are kept less 128, as int8. Of 4 bits, a byte holds that of component i in its lower half and that of
component i + W in its upper half, W bytes a vector. Scale and offset are two float16 in an int32, the scale below: both
fit beside 8-bit codes in 1.94 times fewer bytes than bfloat16 takes for 128 numbers, beside 4-bit codes in 3.76 times
fewer.

Shape suffixes: D numbers of a vector, W bytes of its codes.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE_BYTES = 4
"""Of the scale and offset of a vector."""

LARGEST = 65504.0
"""Of float16."""


def code_width(size: int, bits: int) -> int:
    """W: bytes of the codes of a vector of ``size`` numbers."""
    return size if bits == 8 else -(-size // 2)


def vector_bytes(size: int, bits: int) -> int:
    """Bytes that a vector of ``size`` numbers takes, scale and offset included."""
    return code_width(size, bits) + SCALE_BYTES


def code_dtype(bits: int) -> torch.dtype:
    """Of a byte of codes."""
    return torch.int8 if bits == 8 else torch.uint8


def code_bits(codes: torch.dtype) -> int:
    """The inverse of :func:`code_dtype`."""
    return 8 if codes == torch.int8 else 4


def quantize(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Vectors [..., D] of any dtype -> codes [..., W] in :func:`code_dtype`, and scales [...] int32."""
    wide = x.float()
    broken = wide.isnan().any(-1, keepdim=True)
    wide = wide.nan_to_num(0.0).clamp(-LARGEST, LARGEST)
    most = 2.0**bits - 1
    least, largest = wide.aminmax(dim=-1, keepdim=True)
    offset, scale = least.half(), ((largest - least) / most).half()
    divisor = torch.where(scale > 0, scale, 1.0).float()
    codes = ((wide - offset.float()) / divisor + 0.5).floor_().clamp_(0, most).masked_fill_(scale == 0, 0)
    scales = torch.cat([scale, offset.masked_fill(broken, float("nan"))], -1).view(torch.int32).squeeze(-1)
    if bits == 8:
        return (codes - 128).to(torch.int8), scales
    codes = codes.to(torch.uint8)
    width = code_width(x.shape[-1], bits)
    packed = codes[..., :width].clone()
    packed[..., : x.shape[-1] - width] |= codes[..., width:] << 4
    return packed, scales


def dequantize(codes: Tensor, scales: Tensor, out: Tensor) -> Tensor:
    """codes: [..., W]; scales: [...] int32; out: [..., D] float32, overwritten and returned."""
    # The new last dimension is contiguous even where that of a single scale has another stride.
    scale, offset = scales.unsqueeze(-1).contiguous().view(torch.float16).float().split(1, -1)
    if code_bits(codes.dtype) == 8:
        return out.copy_(codes).add_(128).mul_(scale).add_(offset)
    width = codes.shape[-1]
    out[..., :width].copy_(codes & 15)
    out[..., width:].copy_(codes[..., : out.shape[-1] - width] >> 4)
    return out.mul_(scale).add_(offset)
