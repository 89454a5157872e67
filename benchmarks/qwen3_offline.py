"""Qwen3 in true shapes with random weights, through the offline API: the figures of docs/performance.md for GPUs.

    python benchmarks/qwen3_offline.py 0.6b [throughput] [latency] [key=value ...]

Prefix reuse is off. throughput: the protocol of ``pymllm bench throughput``, three times. latency: decode is (time of
129 tokens - time of 1 token) / 128 with 512 tokens in, best of 3; prefill is the time to the first token, best of 5.
Prints a JSON line for each figure.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from pymllm import LLM, SamplingParams

SHAPES = {
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
}
COMMON = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
    "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 40960, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000, "torch_dtype": "bfloat16", "vocab_size": 151936,
    "eos_token_id": 151645,
}  # fmt: skip
OPTIONS = {
    "model.load_format": "random", "model.dtype": "bfloat16", "model.max_context": 16384, "cache.plugin": "chunk",
    "engine.memory_fraction": 0.8, "engine.max_running_requests": 256,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(SHAPES))
    parser.add_argument("words", nargs="*", metavar="throughput|latency|key=value")
    args = parser.parse_args()
    wanted = [word for word in args.words if "=" not in word] or ["throughput", "latency"]
    options = {**OPTIONS, **dict(word.split("=", 1) for word in args.words if "=" in word)}
    folder = Path(tempfile.mkdtemp())
    config = {**COMMON, **SHAPES[args.size], "tie_word_embeddings": args.size != "8b"}
    (folder / "config.json").write_text(json.dumps(config))
    started = time.perf_counter()
    with LLM(folder, overrides=options) as llm:
        show(args.size, "startup_s", time.perf_counter() - started)
        seconds(llm, [ids(32)], 16)
        if "throughput" in wanted:
            throughput(llm, args.size)
        if "latency" in wanted:
            latency(llm, args.size)


def throughput(llm: LLM, size: str) -> None:
    random.seed(0)
    prompts = [ids(random.randint(100, 1024)) for _ in range(256)]
    counts = [random.randint(100, 1024) for _ in range(256)]
    rates = [sum(counts) / seconds(llm, prompts, counts, temperature=0.6) for _ in range(3)]
    show(size, "offline_tok_s", statistics.median(rates), best=max(rates), worst=min(rates))


def latency(llm: LLM, size: str) -> None:
    for batch in (1, 8, 32, 128):
        prompts = [ids(512) for _ in range(batch)]
        seconds(llm, prompts, 8)
        first = min(seconds(llm, prompts, 1) for _ in range(3))
        whole = min(seconds(llm, prompts, 129) for _ in range(3))
        show(size, f"decode_ms_bs{batch}", (whole - first) / 128 * 1e3)
    for batch, length in ((1, 256), (1, 1024), (1, 2048), (1, 8192), (8, 1024)):
        prompts = [ids(length) for _ in range(batch)]
        seconds(llm, prompts, 1)
        show(size, f"prefill_ms_{batch}x{length}", min(seconds(llm, prompts, 1) for _ in range(5)) * 1e3)


def ids(count: int) -> list[int]:
    return [random.randint(0, 10000) for _ in range(count)]


def seconds(llm: LLM, prompts: list[list[int]], counts: int | list[int], temperature: float = 0.0) -> float:
    """Wall-clock time of answering all prompts; the answers must be as long as asked for."""
    lengths = [counts] * len(prompts) if isinstance(counts, int) else counts
    params = [SamplingParams(temperature=temperature, max_tokens=n, ignore_eos=True) for n in lengths]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    elapsed = time.perf_counter() - started
    if [len(output.outputs[0].token_ids) for output in outputs] != lengths:
        raise SystemExit("an answer is shorter than asked for: nothing was measured")
    return elapsed


def show(size: str, name: str, value: float, **more: float) -> None:
    print(json.dumps({"model": size, "figure": name, "value": value, **more}), flush=True)


if __name__ == "__main__":
    main()
