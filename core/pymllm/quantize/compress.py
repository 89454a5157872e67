"""Quantizes a model with llmcompressor, and writes a compressed-tensors checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pymllm.errors import ConfigError, PymllmError
from pymllm.interfaces.compression import Compression, Smooth
from pymllm.quantize.plan import Plan, matches
from pymllm.quantize.scheme import Scheme

MISSING = "pymllm quantize needs llmcompressor: pip install 'pymllm[quantize]'"

OWN_FILES = ("config.json", "model.safetensors.index.json", "README.md", "recipe.yaml")
"""Of the result: those of the source are not copied over them."""

SMOOTHING = 0.8
"""SmoothQuant's alpha: what its authors take for Llama (Xiao et al. 2023, section 5.2, appendix B)."""

SPIKE_SMOOTHING = 0.25
"""Power of the range of what a linear layer reads of another: a gated block's last one, most of all. SmolLM2's in int8
diverge from full precision half as much with 0.15 or 0.3; with 0.5, or the weights' part, they do so more again."""


class QuantizeError(PymllmError):
    """llmcompressor could not quantize the model."""


def require_llmcompressor() -> None:
    """Raises ConfigError where it is not installed."""
    # Its log tells of each of its steps; its progress bars are enough.
    for name, value in {"LLM_COMPRESSOR_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}.items():
        os.environ.setdefault(name, value)
    if find_spec("llmcompressor") is None:
        raise ConfigError(MISSING)
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="ERROR")


def linear_layers(model: Any) -> dict[str, int]:
    """Name of each linear layer -> columns of its weight."""
    return {name: inputs for name, (inputs, _) in linear_widths(model).items()}


def compress(model: Any, plan: Plan, scheme: Scheme, data: Any, compression: Compression, tokenizer: Any) -> None:
    """Quantize the layers of a plan in place. data: a SampleSet, or None where the scheme needs none.

    Raises QuantizeError.
    """
    from llmcompressor.entrypoints.oneshot import oneshot
    from llmcompressor.pipelines.cache import IntermediatesCache
    from torch.utils.data import DataLoader

    if not has_gpu():
        # There is nothing to pin memory for.
        setattr(IntermediatesCache, "pin_memory", lambda self, *_, **__: None)  # noqa: B010
    given: dict[str, Any] = {}
    if any(matches(pattern, name) for pattern in compression.seeing for name in plan.quantized):
        # Layer by layer, which takes less memory, it follows the language model alone.
        given["pipeline"] = "basic"
    if data is not None:
        loader = DataLoader(data, batch_size=None, shuffle=False)
        given |= {"dataset": loader, "num_calibration_samples": len(data), "processor": tokenizer}
    tied = bool(model.config.get_text_config().tie_word_embeddings)
    try:
        oneshot(model=model, recipe=_modifiers(model, plan, scheme, compression), tie_word_embeddings=tied, **given)
    except Exception as error:
        detail = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise QuantizeError(f"llmcompressor could not quantize the model: {detail}") from error


def _modifiers(model: Any, plan: Plan, scheme: Scheme, compression: Compression) -> list[Any]:
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    from pymllm.quantize.smoothing import ActivationSmoothing

    quantized = set(plan.quantized)
    smooth = [pair for pair in compression.smooth if _all_in(pair.targets, quantized)]
    layers: dict[str, Any] = {"config_groups": _groups(plan, scheme), "ignore": plan.kept}
    if scheme.method == "nearest":
        return [QuantizationModifier(**layers)]
    if scheme.method == "awq":
        mappings = [AWQMapping(pair.source, list(pair.targets)) for pair in smooth]
        return [AWQModifier(mappings=mappings), QuantizationModifier(**layers)]
    if scheme.method == "gptq":
        return [GPTQModifier(**layers, actorder="static")]
    widths = linear_widths(model)
    norms = [pair for pair in smooth if "norm" in pair.source]
    linears = [pair for pair in smooth if pair not in norms and _fits(pair, widths)]
    smoothing = [(SmoothQuantModifier, SMOOTHING, norms), (ActivationSmoothing, SPIKE_SMOOTHING, linears)]
    return [
        *(
            kind(smoothing_strength=strength, mappings=[[list(pair.targets), pair.source] for pair in pairs])
            for kind, strength, pairs in smoothing
            if pairs
        ),
        GPTQModifier(**layers),
    ]


def linear_widths(model: Any) -> dict[str, tuple[int, int]]:
    """Name of each linear layer -> its inputs and outputs."""
    from torch import nn

    layers = ((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear))
    return {name: (layer.in_features, layer.out_features) for name, layer in layers}


def _fits(pair: Smooth, widths: Mapping[str, tuple[int, int]]) -> bool:
    """Whether the target reads the source's outputs one to one: of grouped heads, o_proj does not read v_proj's so."""
    given = {outputs for name, (_, outputs) in widths.items() if matches(pair.source, name)}
    read = {inputs for name, (inputs, _) in widths.items() if any(matches(one, name) for one in pair.targets)}
    return given == read


def _all_in(patterns: tuple[str, ...], names: set[str]) -> bool:
    return all(any(matches(pattern, name) for name in names) for pattern in patterns)


def _groups(plan: Plan, scheme: Scheme) -> dict[str, Any]:
    """compressed-tensors' groups. One group of all that is not ignored is called by its class."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    inputs = None
    if scheme.bits == 8:
        inputs = QuantizationArgs(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)
    groups = {}
    for number, (size, names) in enumerate(plan.groups.items()):
        weights = QuantizationArgs(
            num_bits=scheme.bits,
            type="int",
            strategy="channel" if size is None else "group",
            group_size=size,
            symmetric=scheme.symmetric,
        )
        targets = ["Linear"] if len(plan.groups) == 1 else names
        groups[f"group_{number}"] = QuantizationScheme(targets=targets, weights=weights, input_activations=inputs)
    return groups


def save(model: Any, source: Path, out: Path, dtype: Any) -> None:
    """Write weights and configuration, and copy the tokenizer's and the processor's files. dtype: of what is not
    quantized."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig()  # the source's is copied: transformers refuses to write some
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Attempting to save a model with offloaded modules")
        model.save_pretrained(out, save_compressed=True)
    for file in sorted(out.glob("*.safetensors")):
        _cast(file, dtype)
    for file in sorted(source.iterdir()):
        if file.suffix in (".json", ".jinja", ".txt", ".model") and file.name not in OWN_FILES:
            shutil.copyfile(file, out / file.name)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    for part in (config, config.get("text_config"), config.get("vision_config")):
        if isinstance(part, dict) and "dtype" in part:
            part["dtype"] = str(dtype).removeprefix("torch.")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for file in out.iterdir():
        file.chmod(0o644)


def _cast(file: Path, dtype: Any) -> None:
    """float32 of a model that was computed on a CPU becomes the checkpoint's dtype, but for scales of int8 weights."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors: Mapping[str, Any] = load_file(file)
    eight = {name.removesuffix(".weight") for name, tensor in tensors.items() if tensor.dtype == torch.int8}

    def cast(name: str, tensor: Any) -> Any:
        exact = name.removesuffix(".weight_scale") in eight and name.endswith(".weight_scale")
        return tensor.to(dtype) if tensor.dtype == torch.float32 and not exact else tensor

    save_file({name: cast(name, tensor).contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})


def has_gpu() -> bool:
    """Whether the model can be computed on one."""
    import torch

    return torch.cuda.is_available()
