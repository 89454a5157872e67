"""Which reader a checkpoint needs."""

from __future__ import annotations

from pymllm.errors import PluginError
from pymllm.interfaces import QuantContext
from pymllm_quant_w4a16.plugin import DEFAULT_IGNORE, W4A16Options
from pymllm_quant_w4a16.readers.awq import AwqReader
from pymllm_quant_w4a16.readers.base import Reader
from pymllm_quant_w4a16.readers.compressed import CompressedReader
from pymllm_quant_w4a16.readers.gptq import GptqReader
from pymllm_quant_w4a16.readers.online import OnlineReader


def reader_of(options: W4A16Options, context: QuantContext) -> Reader:
    """Raises PluginError for a kind of checkpoint that w4a16 does not read, or options that do not go with it."""
    config = context.checkpoint
    if config is None:
        if not options.online:
            raise PluginError("the checkpoint is in full precision: set quant.online to true to quantize it to 4 bits")
        return OnlineReader(options)
    method = config.get("quant_method")
    if options.online:
        raise PluginError(f"the checkpoint is quantized already ({method}): set quant.online to false")
    for name in ("group_size", "symmetric"):
        if getattr(options, name) != getattr(W4A16Options, name):
            raise PluginError(f"quant.{name} needs quant.online: a quantized checkpoint says so itself")
    if method != "gptq" and list(options.ignore) != list(DEFAULT_IGNORE):
        raise PluginError("quant.ignore needs quant.online: a quantized checkpoint has an ignore list of its own")
    if method == "compressed-tensors":
        return CompressedReader(config)
    if method == "awq":
        return AwqReader(config)
    if method == "gptq":
        return GptqReader(config, options.ignore)
    raise PluginError(
        f"w4a16 reads compressed-tensors, awq and gptq checkpoints, not {method}: set quant.plugin to auto"
    )
