"""How each kind of checkpoint stores 4-bit weights, and which of its layers have them."""

from pymllm_quant_w4a16.readers.base import Plan, Reader
from pymllm_quant_w4a16.readers.choose import reader_of

__all__ = ["Plan", "Reader", "reader_of"]
