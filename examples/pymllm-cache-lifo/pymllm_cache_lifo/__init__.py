"""A cache policy in sixty lines: the example of pymllm's README."""
