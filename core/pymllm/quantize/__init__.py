"""``pymllm quantize``: a full-precision checkpoint becomes a compressed-tensors one, by llmcompressor."""
