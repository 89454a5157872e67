"""The options of ``pymllm bench``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from pymllm.cli.common import add_config_arguments

OBJECTIVES = ("ttft", "tpot", "e2e")


def add_throughput(parser: argparse.ArgumentParser) -> None:
    """[CONFIG] [key=value ...] and the workload."""
    add_config_arguments(parser)
    parser.add_argument("--num-prompts", type=positive, default=256, metavar="N", help="default: 256")
    _add_lengths(parser, (100, 1024))
    parser.add_argument("--temperature", type=not_negative, default=0.6, metavar="T", help="default: 0.6")
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="default: 3; the median counts")
    _add_common(parser)


def add_one_batch(parser: argparse.ArgumentParser) -> None:
    """[CONFIG] [key=value ...] and the settings, every combination of which is measured."""
    add_config_arguments(parser)
    _add_settings(parser, {"batch-size": [1, 8], "output-len": [128]})
    parser.add_argument(
        "--input-len", type=positive, nargs="+", metavar="N",
        help="one or more; default: 256 1024, or with --image the prompt as it is",
    )  # fmt: skip
    parser.add_argument(
        "--image", type=Path, action="append", default=[], metavar="FILE",
        help="a picture in every prompt; may be given several times. --input-len then pads or cuts the text alone",
    )  # fmt: skip
    parser.add_argument("--prompt", metavar="TEXT", help="that goes with the pictures; default: a short question")
    parser.add_argument("--temperature", type=not_negative, default=0.0, metavar="T", help="default: 0")
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="of each setting; default: 3")
    parser.add_argument(
        "--profile", nargs="?", const="torch", choices=("torch", "cuda"),
        help="trace one more run of each setting, by stage: torch (as --profile alone) writes Chrome traces, "
        "cuda opens cudaProfilerApi ranges for nsys",
    )  # fmt: skip
    parser.add_argument(
        "--profile-dir", type=Path, metavar="DIR", help="of traces; default: PYMLLM_TORCH_PROFILER_DIR, else ./profiles"
    )
    _add_common(parser)


def add_latency(parser: argparse.ArgumentParser) -> None:
    """[CONFIG] [key=value ...] and the settings, every combination of which is measured."""
    add_config_arguments(parser)
    _add_settings(parser, {"batch-size": [1, 8], "input-len": [128], "output-len": [128]})
    parser.add_argument(
        "--shared-prefix", type=natural, default=0, metavar="N", help="tokens that all prompts share; default: 0"
    )
    parser.add_argument("--temperature", type=not_negative, default=0.0, metavar="T", help="default: 0")
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="of each setting; default: 5")
    _add_common(parser)


def add_serve(parser: argparse.ArgumentParser) -> None:
    """The server, the load, and what to do with the results."""
    parser.add_argument("url", nargs="?", metavar="URL", help="of the server, such as http://localhost:8000")
    parser.add_argument("--base-url", metavar="URL", help="the same, as an option")
    parser.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    parser.add_argument("--api-key", metavar="KEY", help="default: PYMLLM_API_KEY or OPENAI_API_KEY, if set")
    parser.add_argument("--num-requests", type=positive, default=100, metavar="N", help="default: 100")
    parser.add_argument(
        "--request-rate", type=above_zero, default=math.inf, metavar="R", help="a second, or inf: all at once (default)"
    )
    parser.add_argument(
        "--burstiness", type=above_zero, default=1.0, metavar="B", help="1: Poisson (default); below 1: burstier"
    )
    parser.add_argument(
        "--concurrency", type=positive, nargs="+", default=[None], metavar="N",
        help="most open requests; default: no limit; several are measured one after another",
    )  # fmt: skip
    parser.add_argument("--dataset", type=Path, metavar="FILE", help='JSON lines with "prompt" or "messages"')
    _add_lengths(parser, (128, 128))
    parser.add_argument("--vocab-size", type=positive, default=10_001, metavar="N", help="random ids are below it")
    parser.add_argument("--temperature", type=not_negative, default=0.0, metavar="T", help="default: 0")
    parser.add_argument("--stop-at-eos", action="store_true", help="let end tokens end answers; do not send ignore_eos")
    parser.add_argument("--warm-ups", type=natural, default=1, metavar="N", help="unmeasured requests; default: 1")
    parser.add_argument(
        "--timeout", type=above_zero, default=600.0, metavar="S", help="seconds of silence; default: 600"
    )
    parser.add_argument(
        "--slo", type=objective, nargs="+", default=[], metavar="NAME=SECONDS",
        help=f"goodput counts answers within these; names: {', '.join(OBJECTIVES)}",
    )  # fmt: skip
    parser.add_argument("--profile", action="store_true", help="let the server record a trace in the load's middle")
    parser.add_argument("--profile-steps", type=positive, metavar="N", help="steps in the trace; default: 200")
    parser.add_argument("--profile-dir", metavar="DIR", help="of the trace, on the server's machine")
    parser.add_argument("--per-request", type=Path, metavar="FILE", help="write one JSON line for each request")
    _add_common(parser)


def add_plot(parser: argparse.ArgumentParser) -> None:
    """The files to read and the picture to write."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.jsonl", help="what --result-filename wrote")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE.png", help="the picture; also .svg or .pdf"
    )


def add_trace(parser: argparse.ArgumentParser) -> None:
    """The trace to read."""
    parser.add_argument("file", type=Path, metavar="TRACE.json[.gz]", help="a Chrome trace that torch.profiler wrote")
    parser.add_argument("--top", type=positive, default=10, metavar="N", help="entries of each list; default: 10")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _add_settings(parser: argparse.ArgumentParser, defaults: dict[str, list[int]]) -> None:
    for name, default in defaults.items():
        text = f"one or more; default: {' '.join(map(str, default))}"
        parser.add_argument(f"--{name}", type=positive, nargs="+", default=default, metavar="N", help=text)


def _add_lengths(parser: argparse.ArgumentParser, default: tuple[int, int]) -> None:
    for name in ("input", "output"):
        parser.add_argument(
            f"--{name}-len", type=positive, nargs="+", default=list(default), metavar="N",
            help=f"tokens of each {'prompt' if name == 'input' else 'answer'}, or the least and the most; "
            f"default: {default[0]} {default[1]}",
        )  # fmt: skip


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of prompts and lengths; default: 0")
    parser.add_argument("--result-filename", type=Path, metavar="FILE", help="append results as JSON lines")
    parser.add_argument("--run-name", metavar="NAME", help="kept with the results")


def natural(text: str) -> int:
    """An integer from 0 up."""
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def positive(text: str) -> int:
    """An integer from 1 up."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def not_negative(text: str) -> float:
    """A finite number from 0 up."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return value


def above_zero(text: str) -> float:
    """A number above 0, or inf."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def objective(text: str) -> tuple[str, float]:
    """NAME=SECONDS."""
    name, _, seconds = text.partition("=")
    if name not in OBJECTIVES or not seconds:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=SECONDS with a name of {', '.join(OBJECTIVES)}")
    return name, above_zero(seconds)
