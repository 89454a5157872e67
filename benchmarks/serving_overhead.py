"""What serving costs beside the model: the whole server, HTTP to scheduler, around a device that only takes time.

    python benchmarks/serving_overhead.py [--streams 64 128 256] [--tokens 512] [--step-ms 6] [--chat]

A step takes --step-ms however many requests it serves, as on a GPU that reads the weights once for all; engine,
scheduler, wire, frontend, HTTP server and the client of ``pymllm bench serve`` are the real ones. For each number of
streams it prints what came through, which share of the time the device was busy (with a real device the rest is lost),
and what the API process and the client used of a processor. Linux only. Fields of --result-filename: streams, tokens,
step_ms, output_tok_s, device_busy_share, api_us_token, client_us_token, tokens_chunk, ttft_s, itl_s.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

STEP_VARIABLE = "SERVING_OVERHEAD_STEP_MS"
LETTERS = range(33, 90)
"""Tokens of the tiny tokenizer that are each a character."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 128, 256], metavar="N")
    parser.add_argument("--tokens", type=int, default=512, metavar="N", help="of each answer; default: 512")
    parser.add_argument("--step-ms", type=float, default=6.0, metavar="MS", help="of the device; default: 6")
    parser.add_argument("--chat", action="store_true", help="chat completions; default: completions of token ids")
    parser.add_argument("--result-filename", type=Path, metavar="FILE", help="append a JSON line for each")
    args = parser.parse_args()
    environment = {**os.environ, STEP_VARIABLE: str(args.step_ms)}
    server = subprocess.Popen([sys.executable, __file__, "serve"], env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        load(url, server.pid, 8, 16, args)
        for streams in args.streams:
            result = load(url, server.pid, streams, args.tokens, args)
            print(
                f"{streams} streams: {result['output_tok_s']:,.0f} tok/s, device busy "
                f"{100 * result['device_busy_share']:.1f} %, {result['tokens_chunk']:.2f} tokens a chunk; API process "
                f"{result['api_us_token']:.1f} us a token, client {result['client_us_token']:.1f}; between chunks "
                f"{1e3 * result['itl_s']['p50']:.1f} ms p50, {1e3 * result['itl_s']['p99']:.1f} p99",
                flush=True,
            )
            if args.result_filename is not None:
                with args.result_filename.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    finally:
        server.terminate()
        server.wait()


def load(url: str, pid: int, streams: int, tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    """So many requests at once, each answered with so many tokens."""
    from pymllm.bench.requests import CHAT, COMPLETIONS, Body, Job
    from pymllm.bench.serve import Target, run_load
    from pymllm.bench.serve_result import result_of

    body = Body("default", 0.0, ignore_eos=True)
    route = CHAT if args.chat else COMPLETIONS
    prompt = {"messages": [{"role": "user", "content": "go on"}]} if args.chat else {"prompt": list(range(40, 60))}
    jobs = [Job(route, body.encode(prompt, tokens), tokens)] * streams
    steps, cpu = steps_of(url), cpu_seconds(pid)
    records, seconds, own = run_load(Target(url), jobs, [0.0] * streams)
    steps, cpu = steps_of(url) - steps, cpu_seconds(pid) - cpu
    result = result_of(records, seconds, own, {})
    if result.failed or result.ttft_s is None or result.itl_s is None:
        raise SystemExit(f"requests failed: {dict(result.errors)}")
    return {
        "streams": streams,
        "tokens": tokens,
        "step_ms": args.step_ms,
        "output_tok_s": result.output_tok_s,
        "device_busy_share": steps * args.step_ms / 1e3 / seconds,
        "api_us_token": 1e6 * cpu / result.output_tokens,
        "client_us_token": 1e6 * own / result.output_tokens,
        "tokens_chunk": result.output_tokens / result.chunks,
        "ttft_s": asdict(result.ttft_s),
        "itl_s": asdict(result.itl_s),
    }


def steps_of(url: str) -> float:
    """Steps of the engine so far."""
    found = re.search(r"^pymllm_engine_steps_total (\S+)", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve() -> None:
    """The server; its first line of output is its URL."""
    from pymllm.checkpoint import open_checkpoint
    from pymllm.compose import compose
    from pymllm.engine.process import ProcessClient
    from pymllm.frontend.frontend import Frontend
    from pymllm.frontend.tokenizer import load_tokenizer
    from pymllm.server.host import Host
    from pymllm.server.serve import listener, run
    from pymllm.testing.tiny import make_tiny_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        make_tiny_checkpoint(folder)
        config = compose(None, {"model.path": folder, "server.port": 0, "log.level": "warning"})
        tokenizer = load_tokenizer(open_checkpoint(config.model), config.model)
        client = ProcessClient(config, progress=False, worker=(sys.executable, __file__, "work"))
        frontend = Frontend(client, tokenizer, generation_defaults={}, eos_token_ids=[], model_name="simulated")
        with listener(config.server) as bound:
            host = Host(frontend, config, bound, lambda: frontend)
            threading.Thread(target=announce, args=(host, bound), daemon=True).start()
            run(host)


def announce(host: Any, bound: socket.socket) -> None:
    host.started.wait()
    print(f"http://127.0.0.1:{bound.getsockname()[1]}", flush=True)


class Device:
    """Stands where a CUDA runner does: steps take their time, one after another, and bring letters."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._free_at = 0.0

    def launch(self, plan: Any) -> Callable[[], list[Any]]:
        from pymllm.engine.plan import ItemResult

        self._free_at = end = max(self._free_at, time.perf_counter()) + self._step_seconds
        tokens = [LETTERS[item.start % len(LETTERS)] if item.samples else None for item in plan.items]

        def wait() -> list[ItemResult]:
            time.sleep(max(0.0, end - time.perf_counter()))
            return [ItemResult(token=token) for token in tokens]

        return wait

    def healthy(self) -> bool:
        return True


def work(commands: str, results: str) -> int:
    """The engine process."""
    from pymllm.engine import worker

    def build(config: Any, progress: bool) -> Any:
        from pymllm.engine.engine import Engine
        from pymllm.engine.messages import EngineInfo
        from pymllm.interfaces.cache import CacheContext
        from pymllm.plugin import CacheOptions
        from pymllm_cache_chunk.policy import ChunkCache

        words = dict.fromkeys(("model", "architecture", "dtype", "kv_dtype", "device"), "simulated")
        sizes = dict.fromkeys(("page_bytes", "weight_bytes", "step_peak_bytes", "parameters"), 0)
        info = EngineInfo(
            **words, **sizes, vocab_size=288, max_context=8192, max_request_tokens=8192, capacity_tokens=1 << 22,
            page_size=16, pages=1 << 18, max_batch_tokens=8192, max_running_requests=256, choices=[],
        )  # fmt: skip
        policy = ChunkCache(CacheOptions(), CacheContext(info.page_size, info.pages))
        step_seconds = float(os.environ[STEP_VARIABLE]) / 1e3
        return Engine(info, Device(step_seconds), policy, seed=0, overlap=True)

    return worker.main(commands, results, build)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve()
    elif sys.argv[1:2] == ["work"]:
        os._exit(work(*sys.argv[2:4]))
    else:
        main()
