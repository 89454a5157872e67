"""``pymllm eval``: ask a model the questions of its plugin's evaluation set, and count the right answers."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymllm.cli.bench_arguments import positive
from pymllm.cli.common import add_config_arguments, compose_arguments, table

if TYPE_CHECKING:
    from pymllm.engine.messages import EngineInfo
    from pymllm.evaluation import Accuracy, Judged


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[CONFIG] [key=value ...] and what to ask."""
    add_config_arguments(parser)
    parser.add_argument("--questions", type=positive, metavar="N", help="only the first N; default: all")
    parser.add_argument("--batch-size", type=positive, default=128, metavar="N", help="at once; default: 128")
    parser.add_argument("--max-tokens", type=positive, default=16, metavar="N", help="of an answer; default: 16")
    parser.add_argument("--output", type=Path, metavar="FILE", help="one JSON line for each question and its answer")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print accuracy by kind of question. Raises PymllmError."""
    config = compose_arguments(args)
    from pymllm.bench.results import check_writable, write_lines
    from pymllm.evaluation import Accuracy, evaluate, evaluation_set
    from pymllm.llm import LLM
    from pymllm.log import setup_logging

    setup_logging("warning" if args.json else config.log.level)
    check_writable(args.output)
    questions = islice(evaluation_set(config.model), args.questions)
    with LLM.from_config(config, progress=sys.stderr.isatty()) as llm:
        started = time.monotonic()
        judged = evaluate(llm, questions, batch_size=args.batch_size, max_tokens=args.max_tokens)
        answers = list(_watched(judged))
        seconds, info = time.monotonic() - started, llm.info
    if args.output is not None:
        write_lines(args.output, ({**asdict(one), "right": one.right} for one in answers))
    accuracy = Accuracy.of(answers)
    print(json.dumps(_record(accuracy, info, seconds)) if args.json else _shown(accuracy, info, seconds))
    return 0


def _watched(judged: Iterable[Judged]) -> Iterator[Judged]:
    from tqdm import tqdm

    return iter(tqdm(judged, unit="question", disable=not sys.stderr.isatty(), dynamic_ncols=True))


def _record(accuracy: Accuracy, info: EngineInfo, seconds: float) -> dict[str, Any]:
    from pymllm.bench.results import engine_metadata, run_metadata

    metadata = run_metadata("eval", None)
    kept = {name: metadata[name] for name in ("date", "command", "versions")}
    return {**asdict(accuracy), "seconds": seconds, "model": info.model, **kept, "engine": engine_metadata(info)}


def _shown(accuracy: Accuracy, info: EngineInfo, seconds: float) -> str:
    counts = accuracy.questions_by_kind
    rows = [(kind, f"{counts[kind]:9d}", f"{100 * share:9.2f} %") for kind, share in accuracy.by_kind.items()]
    rows.append(("all", f"{accuracy.questions:9d}", f"{100 * accuracy.accuracy:9.2f} %"))
    title = ("KIND", "QUESTIONS", " ACCURACY")
    return f"{info.model} in {info.dtype} on {info.device}: {seconds:.1f} s\n\n{table(rows, title)}"
