"""Many requests with long contexts, where a decode step reads more keys and values than weights: how much faster it is,
and how many more pages there are, for each ``attention.kv_dtype``.

    python benchmarks/kv_bound_load.py 4b attention.plugin=triton

Qwen3 in true shapes with random weights (random_qwen3.py), or ``model.path=...``. Each kind is a process of its own,
``pymllm bench one-batch``: one batch prefilled in chunks, then decoded in lockstep, the figure is its median step.
Prints a JSON line for each kind; ``--result-filename`` appends it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KINDS = ("auto", "fp8", "int8", "int4")
OPTIONS = {
    "model.load_format": "random", "model.dtype": "bfloat16", "model.max_context": "16384", "cache.plugin": "chunk",
    "engine.memory_fraction": "0.9", "engine.max_running_requests": "256",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=["0.6b", "1.7b", "4b", "8b"])
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=8192, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--kinds", nargs="+", default=KINDS, choices=("bf16", *KINDS), help="the first is compared with"
    )
    parser.add_argument("--result-filename", type=Path)
    args = parser.parse_args()
    first: dict[str, Any] | None = None
    with tempfile.TemporaryDirectory() as folder:
        if any(word.startswith("model.path=") for word in args.options):
            options = args.options
        else:
            script = Path(__file__).with_name("random_qwen3.py")
            subprocess.run([sys.executable, str(script), args.size, folder], check=True)
            options = [f"{key}={value}" for key, value in OPTIONS.items()] + [f"model.path={folder}", *args.options]
        for kind in args.kinds:
            figures = measure(kind, options, args, Path(folder) / f"{kind}.jsonl")
            first = first or figures
            figures["speed"] = figures["tokens_s"] / first["tokens_s"]
            figures["more_pages"] = figures["pages"] / first["pages"]
            line = json.dumps(figures)
            print(line, flush=True)
            if args.result_filename:
                with args.result_filename.open("a") as file:
                    file.write(line + "\n")


def measure(kind: str, options: list[str], args: argparse.Namespace, results: Path) -> dict[str, Any]:
    """One kind's figures. Exits where the benchmark fails."""
    command = [
        "pymllm", "bench", "one-batch", *options, f"attention.kv_dtype={kind}", "--batch-size", str(args.batch),
        "--input-len", str(args.context), "--output-len", str(args.new_tokens), "--repeats", str(args.rounds),
        "--result-filename", str(results),
    ]  # fmt: skip
    run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if run.returncode:
        raise SystemExit(f"attention.kv_dtype={kind}: {run.stderr.strip().splitlines()[-1]}")
    (found,) = (json.loads(line) for line in results.read_text().splitlines())
    engine = found["engine"]
    return {
        "benchmark": "kv-bound-load", "kv_dtype": kind, "batch": args.batch, "context": args.context,
        "attention": found["attention"], "tokens_s": found["median_decode_throughput"],
        "step_ms": found["median_decode_latency"] * 1e3, "prefill_s": found["prefill_latency"],
        "pages": engine["capacity_tokens"] // engine["page_size"], "bandwidth_share": found["bandwidth_share"],
    }  # fmt: skip


if __name__ == "__main__":
    main()
