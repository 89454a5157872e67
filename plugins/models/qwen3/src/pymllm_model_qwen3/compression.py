"""What ``pymllm quantize`` knows of Qwen3."""

from pymllm.interfaces.compression import Compression, decoder

COMPRESSION = Compression(decoder("model"))
