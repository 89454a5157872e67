"""``pymllm bench serve``: put a running server under load, or several in turn; show and keep the results."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pymllm.cli.bench_offline import keep, lengths, say
from pymllm.cli.bench_trace import busy_line
from pymllm.cli.common import table
from pymllm.errors import ConfigError

if TYPE_CHECKING:
    from pymllm.bench.requests import Job
    from pymllm.bench.serve import Load, Target
    from pymllm.bench.serve_result import ServeResult
    from pymllm.bench.server_profile import ServerProfile
    from pymllm.bench.streaming import Record

ASKED = ("num_requests", "burstiness", "concurrency", "input_len", "output_len", "seed", "temperature")
"""Options that go into the results under their own names."""

SHOWN_ERRORS = 3
PROFILE_STEPS = 200


def serve(args: argparse.Namespace) -> int:
    """Measure a server, under each concurrency in turn. Returns 1 if requests failed; raises PymllmError for what
    the user can fix."""
    from pymllm.bench import tables
    from pymllm.bench.results import check_writable, write_lines
    from pymllm.bench.serve import Target, find_model
    from pymllm.cli.chat_backends import api_key_of

    if not args.profile and (args.profile_steps or args.profile_dir):
        raise ConfigError("--profile-steps and --profile-dir have an effect only with --profile")
    check_writable(args.result_filename)
    check_writable(args.per_request)
    target = Target(_url(args), api_key_of(args.api_key), args.timeout)
    model = args.model or find_model(target)
    print(f"{target.root}, model {model}\n")
    loads = _loads(args)
    runs = [_measure(load, target, model) for load in loads]
    if len(runs) > 1:
        rows = [tables.sweep_row(load.concurrency, result) for load, (result, _) in zip(loads, runs)]
        print(table(rows, tables.SWEEP_TITLE), flush=True)
    if args.per_request is not None:
        write_lines(args.per_request, [_with_load(load, one) for load, (_, all_) in zip(loads, runs) for one in all_])
    return 1 if any(result.failed for result, _ in runs) else 0


def _loads(args: argparse.Namespace) -> list[argparse.Namespace]:
    """The arguments of each run. Runs have seeds of their own, so that none finds the prompts of another in the
    server's cache."""
    loads = [
        argparse.Namespace(**{**vars(args), "concurrency": concurrency, "seed": args.seed + place})
        for place, concurrency in enumerate(args.concurrency)
    ]
    if len(loads) > 1 and args.dataset is not None:
        say("each run asks the same lines of --dataset: later ones may find them in the server's prefix cache")
    return loads


def _measure(args: argparse.Namespace, target: Target, model: str) -> tuple[ServeResult, list[Record]]:
    """One run: measured, shown and kept."""
    from pymllm.bench import tables
    from pymllm.bench.results import run_metadata
    from pymllm.bench.serve_result import result_of, warnings_of
    from pymllm.bench.server_profile import ServerProfile

    record = {**run_metadata("serve", args.run_name), **_asked(args, target, model)}
    profile = ServerProfile(args.profile_steps or PROFILE_STEPS, args.profile_dir) if args.profile else None
    records, seconds, cpu_seconds = _run(args, target, model, profile)
    result = result_of(records, seconds, cpu_seconds, dict(args.slo))
    warnings = warnings_of(result, records, paced=args.request_rate < math.inf, unshared=args.dataset is None)
    print(table(tables.serve_totals(result)) + "\n")
    print(table(tables.serve_rows(result), tables.SERVE_TITLE) + "\n", flush=True)
    for line in [*_error_lines(records), *warnings]:
        say(line)
    traced = None if profile is None else _profiled(profile)
    keep(args, record, result, {"warnings": warnings, "profile": traced})
    return result, records


def _profiled(profile: ServerProfile) -> dict[str, Any]:
    """Say what became of the profile; the field ``profile``."""
    from pymllm.bench.gpu_use import gpu_use
    from pymllm.bench.trace_file import read_trace

    found: dict[str, Any] = {"trace": profile.trace, "error": profile.error, "gpus": None}
    if profile.error is not None:
        say(f"not profiled: {profile.error}")
        return found
    say("the server was profiled during this run, which slows it down: do not compare these figures with others")
    if profile.trace is None or not Path(profile.trace).is_file():
        say(f"the trace is on the server's machine, {profile.trace or 'it did not say where'}")
        return found
    uses = gpu_use(read_trace(Path(profile.trace)))
    lines = [f"{busy_line(use)}; see 'pymllm bench trace'" for use in uses] or ["it holds no work of a GPU"]
    say(f"trace: {profile.trace}\n" + "\n".join(lines))
    return {**found, "gpus": {str(use.device): use.busy_share for use in uses}}


def _with_load(args: argparse.Namespace, record: Record) -> dict[str, Any]:
    return {"concurrency": args.concurrency, **msgspec.to_builtins(record)}


def _url(args: argparse.Namespace) -> str:
    """Raises ConfigError unless the URL was given once."""
    if args.url is not None and args.base_url is not None:
        raise ConfigError(f"the server is given twice, as {args.url} and --base-url {args.base_url}; leave one out")
    url = args.url if args.url is not None else args.base_url
    if url is None:
        raise ConfigError("which server? Write its URL: pymllm bench serve http://localhost:8000")
    return str(url)


def _run(args: argparse.Namespace, target: Target, model: str, profile: ServerProfile | None) -> Load:
    from tqdm import tqdm

    from pymllm.bench.requests import arrivals
    from pymllm.bench.serve import run_load

    jobs, warm_up = _jobs(args, model)
    schedule = arrivals(len(jobs), args.request_rate, args.burstiness, args.seed)
    with tqdm(total=len(jobs), unit="request", disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar:
        return run_load(
            target,
            jobs,
            schedule,
            warm_up=warm_up,
            concurrency=args.concurrency,
            done=lambda: bar.update(),
            profile=profile,
        )


def _jobs(args: argparse.Namespace, model: str) -> tuple[list[Job], list[Job]]:
    """The requests to measure, and those to warm up with, whose prompts are others. Raises ConfigError."""
    from pymllm.bench.requests import Body, dataset_jobs, greeting_jobs, random_jobs, read_dataset

    body = Body(model, args.temperature, ignore_eos=not args.stop_at_eos)
    inputs, outputs = lengths("--input-len", args.input_len), lengths("--output-len", args.output_len)
    if args.dataset is not None:
        jobs = dataset_jobs(body, read_dataset(args.dataset), args.num_requests, outputs, args.seed)
        return jobs, greeting_jobs(body, jobs[0].route, args.warm_ups)
    jobs = random_jobs(body, args.num_requests, inputs, outputs, args.seed, args.vocab_size)
    # A measured run cannot have a fractional seed.
    return jobs, random_jobs(body, args.warm_ups, inputs, outputs, args.seed + 0.5, args.vocab_size)


def _asked(args: argparse.Namespace, target: Target, model: str) -> dict[str, Any]:
    from pymllm.bench.serve import server_info

    return {
        "url": target.root,
        "model": model,
        "server": server_info(target),
        **{name: getattr(args, name) for name in ASKED},
        "request_rate": args.request_rate if args.request_rate < math.inf else "inf",
        "dataset": None if args.dataset is None else str(args.dataset),
        "ignore_eos": not args.stop_at_eos,
        "objectives": dict(args.slo),
    }


def _error_lines(records: Sequence[Record]) -> list[str]:
    """The first errors of different text."""
    found = dict.fromkeys(f"{record.error_kind}: {record.error}" for record in records if record.error is not None)
    lines = [f"failed: {line}" for line in list(found)[:SHOWN_ERRORS]]
    if len(found) > SHOWN_ERRORS:
        lines.append(f"failed: {len(found) - SHOWN_ERRORS} more kinds of errors, see --per-request")
    return lines
