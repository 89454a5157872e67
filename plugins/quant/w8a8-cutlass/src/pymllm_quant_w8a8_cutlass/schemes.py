"""Which layers the method serves, from the checkpoint's quantization_config or from the options."""

from __future__ import annotations

import logging

from pymllm.checkpoint.compressed_tensors import CompressedTensors, Scheme
from pymllm.errors import CheckpointError, PluginError
from pymllm.interfaces import LinearSpec, QuantContext, Unsupported
from pymllm_quant_w8a8_cutlass.plugin import DEFAULT_IGNORE, W8A8Options

log = logging.getLogger(__name__)

FORMAT = "int-quantized"
TERMS = 16
"""Kernels read rows in steps of 16 bytes."""


def read(options: W8A8Options, context: QuantContext) -> CompressedTensors:
    """The layers and their schemes. Raises PluginError for a checkpoint that the method cannot read."""
    if context.checkpoint is None:
        if not options.online:
            raise PluginError(
                "the checkpoint is in full precision: set quant.online to true to quantize it while it loads"
            )
        weights = {"num_bits": 8, "strategy": "channel"}
        inputs = {"num_bits": 8, "strategy": "token", "dynamic": True}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        asked = {"quant_method": "compressed-tensors", "format": FORMAT, "config_groups": {"all": group}}
        return _parse({**asked, "ignore": list(options.ignore)})
    if options.online:
        raise PluginError("the checkpoint is quantized already: leave out quant.online")
    if list(options.ignore) != list(DEFAULT_IGNORE):
        raise PluginError("quant.ignore needs quant.online: a quantized checkpoint has an ignore list of its own")
    return _parse(dict(context.checkpoint))


def _parse(config: dict[str, object]) -> CompressedTensors:
    try:
        return CompressedTensors.read(config)
    except CheckpointError as error:
        raise PluginError(str(error)) from error


def check(spec: LinearSpec, scheme: Scheme) -> None:
    """Raises Unsupported, with a reason, if the method cannot serve the layer."""
    reason = _of_scheme(scheme) or _of_shape(spec)
    if reason:
        raise Unsupported(reason)


def _of_scheme(scheme: Scheme) -> str | None:
    weights, inputs = scheme.weights, scheme.inputs
    if scheme.format != FORMAT:
        return f"its format is {scheme.format}, not {FORMAT}"
    if (weights.bits, weights.kind, weights.strategy, weights.symmetric, weights.dynamic) != (
        8,
        "int",
        "channel",
        True,
        False,
    ):
        return f"its weights are {weights}: only 8-bit int, per channel, symmetric are served"
    if inputs is None:
        return "its activations are not quantized"
    if (inputs.bits, inputs.kind, inputs.strategy, inputs.symmetric, inputs.dynamic) != (8, "int", "token", True, True):
        return f"its activations are {inputs}: only 8-bit int, per token, symmetric, dynamic are served"
    return None


def _of_shape(spec: LinearSpec) -> str | None:
    if spec.world > 1:
        return f"layers cut over {spec.world} GPUs are not available"
    if spec.in_features % TERMS:
        return f"{spec.in_features} input features are not a multiple of {TERMS}"
    return None


def check_ignored(schemes: CompressedTensors, options: W8A8Options) -> None:
    """Once all layers were made: an ignore entry of the user's that named none is an error, and one of a checkpoint is
    told, since what it names may be no linear layer here."""
    unmatched = schemes.unmatched()
    if options.online:
        unmatched = [entry for entry in unmatched if entry not in DEFAULT_IGNORE]
    if not unmatched:
        return
    listed = ", ".join(f"'{entry}'" for entry in unmatched)
    if options.online:
        raise PluginError(f"no linear layer matches {listed} of quant.ignore: correct or remove it")
    log.info("ignore entries of the checkpoint that name no linear layer: %s", listed)
