"""What ``pymllm quantize`` knows of Llama and its kin."""

from pymllm.interfaces.compression import Compression, decoder

COMPRESSION = Compression(decoder("model"))
