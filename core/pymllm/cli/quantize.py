"""``pymllm quantize``: make a quantized checkpoint, and say what it costs."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymllm.cli.bench_arguments import positive
from pymllm.cli.bench_offline import say
from pymllm.cli.common import add_config_arguments, compose_arguments, config_source
from pymllm.errors import ConfigError
from pymllm.quantize.plan import GROUP_SIZES
from pymllm.quantize.scheme import SCHEMES, Scheme

if TYPE_CHECKING:
    from pymllm.checkpoint import Checkpoint
    from pymllm.config import Config
    from pymllm.interfaces.compression import Compression
    from pymllm.quantize.judge import Figure
    from pymllm.quantize.plan import Plan
    from pymllm.quantize.samples import SampleSet

SEQLEN = 2048
"""Tokens of a sample, where the model takes as many."""

DEFAULT_TEXT = "chapters of the Python language's documentation"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[CONFIG] [key=value ...], of which the model is taken, and how to quantize it."""
    add_config_arguments(parser, required=True)
    parser.add_argument("--scheme", required=True, choices=SCHEMES, help="; ".join(
        f"{scheme.name}: {scheme.summary}" for scheme in SCHEMES.values()
    ))  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder for the checkpoint")
    parser.add_argument(
        "--calib", type=Path, metavar="FILE",
        help='JSON lines with "text", "messages", or "image" with "text" and "answer"; '
        f"default: {DEFAULT_TEXT}",
    )  # fmt: skip
    parser.add_argument("--samples", type=positive, default=128, metavar="N", help="of calibration; default: 128")
    parser.add_argument(
        "--seqlen",
        type=positive,
        metavar="N",
        help=f"tokens of a text sample; default: {SEQLEN}, or what the model takes",
    )
    parser.add_argument(
        "--group-size", type=int, choices=(*GROUP_SIZES, -1),
        help="weights that share a scale (4 bits); -1: a whole row; smaller where it divides no row; default: 128",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", type=Path, metavar="FILE",
        help="YAML: {pattern: {bits: 4, 8 or 16, group_size: N}}; the first pattern that names a layer counts",
    )  # fmt: skip
    parser.add_argument("--no-eval", action="store_true", help="do not compare with the original")
    parser.add_argument("--eval-tokens", type=positive, default=8192, metavar="N", help="of text; default: 8192")
    parser.add_argument("--eval-questions", type=positive, metavar="N", help="of the plugin's set; default: all")


def execute(args: argparse.Namespace) -> int:
    """Write the checkpoint, and print what quantizing costs. Raises PymllmError."""
    from pymllm.quantize import compress
    from pymllm.quantize.plan import read_recipe

    scheme = SCHEMES[args.scheme]
    rules = read_recipe(args.recipe, scheme) if args.recipe is not None else []
    _check(args, scheme)
    config = compose_arguments(args)
    compress.require_llmcompressor()
    from pymllm.checkpoint import open_checkpoint
    from pymllm.frontend.tokenizer import load_tokenizer
    from pymllm.quantize.plan import make_plan
    from pymllm.quantize.source import load_model, transformers_folder

    checkpoint = open_checkpoint(config.model, progress=sys.stderr.isatty())
    tokenizer = load_tokenizer(checkpoint, config.model)
    if tokenizer is None:
        raise ConfigError(f"{checkpoint.name} has no tokenizer: set model.tokenizer_path")
    compression = _compression(config, checkpoint)
    data, told, seen = _calibration(args, scheme, checkpoint, tokenizer, compression)
    with transformers_folder(checkpoint, tokenizer) as folder:
        model = load_model(folder, checkpoint, on_cpu=not compress.has_gpu())
        plan = make_plan(compress.linear_layers(model), scheme, args.group_size or 128, compression.keep, rules)
        _check_seen(plan, scheme, compression, seen=seen)
        for note in plan.notes:
            say(note)
        say(f"quantizing {len(plan.quantized)} layers, {len(plan.kept)} stay in full precision; calibration: {told}")
        compress.compress(model, plan, scheme, data, compression, tokenizer)
        compress.save(model, folder, args.output, _dtype(checkpoint))
        del model
    _judge(args, config, checkpoint, scheme, plan, told)
    return 0


def _check(args: argparse.Namespace, scheme: Scheme) -> None:
    """Raises ConfigError for options that the scheme does not read, and a folder that is in use."""
    if scheme.bits == 8 and args.group_size is not None:
        raise ConfigError(f"--group-size has no effect with --scheme {scheme.name}: int8 weights have no groups")
    if not scheme.calibrated and args.calib is not None:
        raise ConfigError(f"--calib has no effect with --scheme {scheme.name}, which reads no calibration data")
    out = args.output
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--output '{out}' is there already: give a new folder")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--output '{out}': there is no folder '{out.absolute().parent}'")


def _compression(config: Config, checkpoint: Checkpoint) -> Compression:
    from pymllm.engine.choose import choose_model
    from pymllm.plugin import ModelSpec
    from pymllm.registry import Registry

    registry = Registry()
    name = choose_model(registry, config.model, checkpoint).choice.name
    spec = registry.load("model", name)
    found = registry.compression(name, spec) if isinstance(spec, ModelSpec) else None
    if found is None:
        raise ConfigError(f"model plugin '{name}' does not say how its models can be quantized")
    return found


def _calibration(
    args: argparse.Namespace, scheme: Scheme, checkpoint: Checkpoint, tokenizer: Any, compression: Compression
) -> tuple[SampleSet | None, str, bool]:
    """The data, what it is, and whether there are pictures in it."""
    from pymllm.quantize.calibration import default_texts, has_images, read_samples
    from pymllm.quantize.samples import SampleSet

    if not scheme.calibrated:
        return None, "none", False
    most = {**checkpoint.config, **(checkpoint.config.get("text_config") or {})}.get("max_position_embeddings")
    length = args.seqlen or min(SEQLEN, most or SEQLEN)
    if most is not None and length > most:
        raise ConfigError(f"--seqlen {length} is longer than what the model takes, {most} tokens")
    samples = default_texts(held_out=False) if args.calib is None else read_samples(args.calib, args.samples)
    data = SampleSet(samples, checkpoint, tokenizer, compression, length=length, count=args.samples)
    if len(data) < args.samples:
        say(f"--samples {args.samples}: the calibration data makes {len(data)}, all of them are taken")
    told = f"{len(data)} samples of {DEFAULT_TEXT if args.calib is None else args.calib.name}"
    return data, told, has_images(samples)


def _check_seen(plan: Plan, scheme: Scheme, compression: Compression, *, seen: bool) -> None:
    """Raises ConfigError where layers would be calibrated that no sample reaches."""
    from pymllm.quantize.plan import matches

    seeing = [name for name in plan.quantized if any(matches(pattern, name) for pattern in compression.seeing)]
    if seeing and scheme.calibrated and not seen:
        raise ConfigError(
            f"calibration holds no picture, which {len(seeing)} layers such as {seeing[0]} need: give lines with "
            '"image" in --calib, or keep these layers with a --recipe (bits: 16)'
        )


def _dtype(checkpoint: Checkpoint) -> Any:
    import torch

    return checkpoint.dtype or torch.bfloat16


def _judge(
    args: argparse.Namespace, config: Config, checkpoint: Checkpoint, scheme: Scheme, plan: Plan, told: str
) -> None:
    from pymllm.compose import compose
    from pymllm.quantize.card import write_card
    from pymllm.quantize.judge import judge

    figures: list[Figure] = []
    command = f"pymllm {shlex.join(sys.argv[1:])}"
    write_card(args.output, checkpoint.name, scheme, plan, told, figures, command)
    if not args.no_eval:
        source, overrides = config_source(args.settings)
        quantized = compose(source, [*overrides, f"model.path={args.output}"])
        say("comparing with the original")
        figures = judge(config, quantized, tokens=args.eval_tokens, questions=args.eval_questions)
        write_card(args.output, checkpoint.name, scheme, plan, told, figures, command)
        for figure in figures:
            print(figure)
    print(f"{args.output}: serve it with 'pymllm run model.path={args.output}'")
