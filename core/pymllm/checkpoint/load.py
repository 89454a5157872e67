"""Filling a model's weights, exactly: from a checkpoint, or with random numbers."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymllm.checkpoint.base import Checkpoint
from pymllm.errors import CheckpointError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pymllm.interfaces.weights import WeightMap

_LISTED = 10
_NORM = re.compile(r".*norm\d*\.weight")


def load_weights(checkpoint: Checkpoint, weights: WeightMap, *, progress: bool) -> None:
    """Read every tensor of ``checkpoint`` into its binding in ``weights``.

    Names and shapes are compared before the first weight is read. Raises CheckpointError that lists the
    tensors nothing takes, the bindings nothing fills, and the shapes that differ, or the layers that are quantized and
    that the quantization method refused. ``progress`` shows a bar of elements on standard error.
    """
    from tqdm import tqdm

    shapes = checkpoint.tensor_shapes()
    _check(checkpoint, weights, shapes)
    total = sum(math.prod(shape) for name, shape in shapes.items() if name in weights)
    bar = tqdm(total=total, unit=" weights", unit_scale=True, desc=f"loading {checkpoint.name}", disable=not progress)
    with bar:
        for name, tensor in checkpoint.tensors(weights.__contains__):
            binding = weights.get(name)
            assert binding is not None
            binding.load(tensor)
            bar.update(tensor.numel())


def _check(checkpoint: Checkpoint, weights: WeightMap, shapes: dict[str, tuple[int, ...]]) -> None:
    unknown = [name for name in shapes if name not in weights and not weights.ignored(name)]
    _check_refused(checkpoint, weights, unknown)
    missing = [name for name in weights if name not in shapes]
    other = []
    for name, shape in shapes.items():
        binding = weights.get(name)
        if binding is not None and binding.shape != shape:
            other.append(f"{name} ({list(shape)}, the model has {list(binding.shape)})")
    problems = [
        *_listed(unknown, "of its tensors unknown to the model"),
        *_listed(missing, "tensors missing"),
        *_listed(other, "tensors of another shape"),
    ]
    if problems:
        raise CheckpointError(
            f"checkpoint {checkpoint.name} does not fit the model: {'; '.join(problems)}; "
            "check that config.json and the weights belong together and that model.plugin is right"
        )


def _check_refused(checkpoint: Checkpoint, weights: WeightMap, unknown: Sequence[str]) -> None:
    """Layers that the quantization method refused have tensors that nothing takes: these are quantized all the same."""
    refused: dict[str, dict[str, None]] = {}
    for name in unknown:
        reason = weights.refusal(name)
        if reason is not None:
            refused.setdefault(reason, {})[name.rpartition(".")[0]] = None
    if refused:
        told = "; ".join(f"{reason}: {_cut(list(modules))}" for reason, modules in refused.items())
        raise CheckpointError(
            f"the quant plugin cannot serve layers that are quantized in checkpoint {checkpoint.name}: {told}; "
            "set quant.plugin to one that can (see 'pymllm plugins'), or use a checkpoint that keeps these layers in "
            "full precision"
        )


def _listed(names: Sequence[str], what: str) -> list[str]:
    return [f"{len(names)} {what}: {_cut(names)}"] if names else []


def _cut(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def fill_random(
    weights: WeightMap, *, device: torch.device | str, dtype: torch.dtype, seed: int = 0, std: float = 0.02
) -> None:
    """Fill every binding with random numbers made on ``device``: for benchmarks that need no checkpoint.

    Matrices are normal(0, std), norms ones, biases zeros; a binding that draws its own gets that. A tensor
    depends on ``seed``, its name, the device's kind and the dtype alone, so that shards of a model and
    other build orders see the same one.
    """
    import torch

    generator = torch.Generator(device=device)
    for name in weights:
        binding = weights.get(name)
        assert binding is not None
        # torch's CPU generator uses only 32 bits of its seed.
        generator.manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
        if binding.draw is not None:
            binding.load(binding.draw(generator))
            continue
        tensor = torch.empty(binding.shape, dtype=dtype, device=device)
        _fill(name, tensor, generator, std)
        binding.load(tensor)


def _fill(name: str, tensor: Tensor, generator: torch.Generator, std: float) -> None:
    if name.endswith(".bias"):
        tensor.zero_()
    elif tensor.dim() == 1 and _NORM.fullmatch(name):
        tensor.fill_(1.0)
    else:
        tensor.normal_(0.0, std, generator=generator)
