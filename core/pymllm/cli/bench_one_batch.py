"""``pymllm bench one-batch``: assemble a configuration's model without an engine, and time its steps."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pymllm.cli.bench_offline import keep, metadata, say, system
from pymllm.cli.common import compose_arguments, table
from pymllm.errors import ConfigError
from pymllm.trace import trace_folder

if TYPE_CHECKING:
    import torch

    from pymllm.bench.ceilings import Ceilings
    from pymllm.bench.pictures import Pictures
    from pymllm.bench.profile import Profiler
    from pymllm.config import Config
    from pymllm.engine.assemble import Assembled


def one_batch(args: argparse.Namespace) -> int:
    """Measure every setting. Raises PymllmError."""
    if args.profile_dir is not None and args.profile != "torch":
        raise ConfigError("--profile-dir has an effect only with --profile or --profile torch")
    config = compose_arguments(args)
    from pymllm.bench import tables
    from pymllm.bench.one_batch import OneBatchOptions, measure_one_batch
    from pymllm.bench.results import check_writable
    from pymllm.log import setup_logging

    check_writable(args.result_filename)
    setup_logging(config.log.level)
    if args.prompt is not None and not args.image:
        raise ConfigError("--prompt has an effect only with --image: prompts without pictures are random")
    fields = ("batch_size", "input_len", "output_len", "temperature", "seed", "repeats")
    args.input_len = args.input_len or ([] if args.image else [256, 1024])
    parts, ceilings, profiler = _prepare(config, args)
    options = OneBatchOptions(**{name: getattr(args, name) for name in fields})
    pictures = _pictures(config, parts, args)
    record = metadata(args, parts.info)
    rows, results = [], []
    for result in measure_one_batch(parts, ceilings, options, profiler, pictures):
        rows.append(tables.one_batch_row(result))
        results.append(result)
        say(f"measured: batch {result.batch_size}, {result.input_len} tokens in, {result.output_len} out")
        keep(args, record, options, result)
    print(f"{system(record)}\n{_rates(ceilings)}; {options.repeats} repeats of each setting\n")
    print(table(rows, tables.ONE_BATCH_TITLE))
    if pictures is not None:
        print(f"\n{table([tables.pictures_row(result) for result in results], tables.PICTURES_TITLE)}")
    return 0


def _pictures(config: Config, parts: Assembled, args: argparse.Namespace) -> Pictures | None:
    if not args.image:
        return None
    from pymllm.bench.pictures import Pictures

    return Pictures(config, parts, args.image, args.prompt or "What do the pictures show?")


def _prepare(config: Config, args: argparse.Namespace) -> tuple[Assembled, Ceilings, Profiler | None]:
    """Measure what the device can do while it is empty, then load the model."""
    from pymllm.bench.ceilings import measure_ceilings
    from pymllm.checkpoint import open_checkpoint
    from pymllm.engine.assemble import assemble_parts, pick_device, pick_dtype

    progress = sys.stderr.isatty()
    device = pick_device(config.engine)
    profiler = _profiler(args, device)
    dtype = pick_dtype(config.model.dtype, open_checkpoint(config.model, progress=progress), device)
    ceilings = measure_ceilings(device, dtype)
    return assemble_parts(config, progress=progress), ceilings, profiler


def _profiler(args: argparse.Namespace, device: torch.device) -> Profiler | None:
    if args.profile is None:
        return None
    from pymllm.bench.profile import CudaProfiler, TorchProfiler

    if args.profile == "cuda":
        return CudaProfiler(device)
    folder = trace_folder(args.profile_dir)
    return TorchProfiler(folder, args.run_name, device, lambda path: say(f"trace written to {path}"))


def _rates(ceilings: Ceilings) -> str:
    bandwidth, compute = ceilings.bandwidth / 1e9, ceilings.compute / 1e12
    return f"this device copies {bandwidth:,.0f} GB/s and multiplies {ceilings.dtype} at {compute:,.2f} TFLOP/s"
