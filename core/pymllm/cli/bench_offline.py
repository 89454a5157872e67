"""``pymllm bench throughput`` and ``latency``: load a configuration, measure, show and keep the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pymllm.cli.common import compose_arguments, table
from pymllm.errors import ConfigError

if TYPE_CHECKING:
    from pymllm.bench.workload import Lengths
    from pymllm.engine.messages import EngineInfo
    from pymllm.llm import LLM


def throughput(args: argparse.Namespace) -> int:
    """Measure offline throughput. Raises PymllmError."""
    from pymllm.bench import tables
    from pymllm.bench.throughput import ThroughputOptions, measure_throughput

    options = ThroughputOptions(
        num_prompts=args.num_prompts,
        input_len=lengths("--input-len", args.input_len),
        output_len=lengths("--output-len", args.output_len),
        seed=args.seed,
        temperature=args.temperature,
        repeats=args.repeats,
    )
    with _load(args) as llm:
        record = metadata(args, llm.info)
        result = measure_throughput(llm, options, progress=sys.stderr.isatty(), say=say)
    print(f"{system(record)}\n{options.num_prompts} requests: {result.input_tokens:,} prompt tokens, ", end="")
    print(f"{result.output_tokens:,} output tokens; {options.repeats} repeats\n")
    print(table(tables.throughput_rows(result), tables.THROUGHPUT_TITLE))
    keep(args, record, options, result)
    return 0


def latency(args: argparse.Namespace) -> int:
    """Measure offline latency, one setting after another. Raises PymllmError."""
    from pymllm.bench import tables
    from pymllm.bench.latency import LatencyOptions, measure_latency

    fields = ("batch_size", "input_len", "output_len", "shared_prefix", "seed", "temperature", "repeats")
    options = LatencyOptions(**{name: getattr(args, name) for name in fields})
    rows = []
    with _load(args) as llm:
        record = metadata(args, llm.info)
        for result in measure_latency(llm, options):
            rows.append(tables.latency_row(result))
            say(f"measured: batch {result.batch_size}, {result.input_len} tokens in, {result.output_len} out")
            keep(args, record, options, result)
    print(f"{system(record)}\n{options.repeats} repeats of each setting\n")
    print(table(rows, tables.LATENCY_TITLE))
    return 0


def say(line: str) -> None:
    """A line for whoever watches."""
    print(f"pymllm: {line}", file=sys.stderr, flush=True)


def lengths(option: str, bounds: Sequence[int]) -> Lengths:
    """One number, or the least and the most. Raises ConfigError if there are more, or they are the wrong way round."""
    from pymllm.bench.workload import Lengths

    if len(bounds) > 2:
        raise ConfigError(f"{option} takes one number, or the least and the most, not {len(bounds)} numbers")
    least, most = bounds[0], bounds[-1]
    if least > most:
        raise ConfigError(f"{option} {least} {most}: the first number must not exceed the second")
    return Lengths(least, most)


def keep(args: argparse.Namespace, *parts: Any) -> None:
    """Append one line, whose fields are those of all parts in turn, to --result-filename if there is one."""
    from pymllm.bench.results import append_line

    if args.result_filename is not None:
        fields: dict[str, Any] = {}
        for part in parts:
            fields |= msgspec.to_builtins(part)
        append_line(args.result_filename, fields)


def _load(args: argparse.Namespace) -> LLM:
    """Compose and load; files and configuration are checked before the model is loaded. Raises PymllmError."""
    config = compose_arguments(args)
    from pymllm.bench.results import check_writable
    from pymllm.llm import LLM
    from pymllm.log import setup_logging

    check_writable(args.result_filename)
    setup_logging(config.log.level)
    return LLM.from_config(config, progress=sys.stderr.isatty())


def metadata(args: argparse.Namespace, info: EngineInfo) -> dict[str, Any]:
    """The fields that every line of an offline benchmark has. Says so when the machine is not idle."""
    import torch

    from pymllm.bench.results import QUIET_LOAD, engine_metadata, run_metadata
    from pymllm.cli.machine import facts

    record = run_metadata(args.measure, args.run_name)
    cpu = facts()["cpu"]
    record["machine"] = {"cpu": cpu["model"], "cores": cpu["cores"], "threads": torch.get_num_threads()}
    record["engine"] = engine_metadata(info)
    load = record["load_average"]
    if info.device == "cpu" and load is not None and load > QUIET_LOAD:
        say(f"the load of this machine is {load:.2f}: figures measured beside other work say little")
    return record


def system(record: dict[str, Any]) -> str:
    """What ran, in one line."""
    engine = record["engine"]
    plugins = ", ".join(f"{kind} {name}" for kind, name in engine["plugins"].items())
    device = record["machine"]["cpu"] if engine["device"] == "cpu" else engine["device"]
    threads = f", {record['machine']['threads']} threads" if engine["device"] == "cpu" else ""
    return f"{engine['model']} in {engine['dtype']} on {device}{threads} ({plugins})"
