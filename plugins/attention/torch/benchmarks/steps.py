"""How long the attention of a step takes, all layers of SmolLM2-135M, in milliseconds (median of 20).

Run it on an otherwise idle machine: ``python plugins/attention/torch/benchmarks/steps.py``
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace

import torch

from pymllm.interfaces import AttentionContext, KVGroup
from pymllm.layers.rope import Rope
from pymllm.layers.rope_scaling import RopeSpec
from pymllm.testing.attention_batch import make_attention_batch
from pymllm_attention_torch.backend import TorchAttention

LAYERS, HEADS, KV_HEADS, SIZE, PAGE, PAGES = 30, 9, 3, 64, 16, 2200

STEPS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "decode 1 x 300": ([1], [300]),
    "decode 1 x 2000": ([1], [2000]),
    "decode 8 x 300-700": ([1] * 8, [300, 357, 414, 471, 528, 585, 642, 700]),
    "decode 32 x 300-700": ([1] * 32, [300 + 400 * i // 31 for i in range(32)]),
    "prefill 512 after 0": ([512], [512]),
    "prefill 512 after 512": ([512], [1024]),
    "prefill 512 after 1500": ([512], [2012]),
    "prefill 8 x 64": ([64] * 8, [64] * 8),
    "mixed 31 decodes + 128": ([1] * 31 + [128], [500] * 31 + [128]),
}


def main() -> None:
    """Print one line per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    dtype, device = getattr(torch, options.dtype), torch.device(options.device)
    group = KVGroup("full", LAYERS, KV_HEADS, SIZE)
    backend = TorchAttention(None, AttentionContext(device, dtype, PAGE, {"full": group}))
    backend.allocate(group, PAGES)
    frequencies = tuple(10000.0 ** (-2 * i / SIZE) for i in range(SIZE // 2))
    rope = Rope(RopeSpec(frequencies, 1.0), 4096, device=device)
    shape = {"group": "full", "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": SIZE, "scale": SIZE**-0.5}
    layers = [SimpleNamespace(index=i, q_norm=None, k_norm=None, rope=rope, **shape) for i in range(LAYERS)]
    with torch.inference_mode():
        for name, (query_lens, context_lens) in STEPS.items():
            if options.only in name:
                print(f"{name:24}", measure(backend, layers, query_lens, context_lens))


def measure(backend: TorchAttention, layers: list, query_lens: Sequence[int], context_lens: Sequence[int]) -> str:
    """Plan and run a step 20 times on scattered pages."""
    device, dtype = backend.context.device, backend.context.dtype
    free = random.Random(0).sample(range(1, PAGES), PAGES - 1)
    pages = [[free.pop() for _ in range(-(-context // PAGE))] for context in context_lens]
    batch = make_attention_batch(query_lens, context_lens, pages, PAGE, device)
    ends = zip(query_lens, context_lens)
    positions = torch.cat([torch.arange(context - new, context) for new, context in ends]).to(device)
    qkv = torch.randn(len(positions), (HEADS + 2 * KV_HEADS) * SIZE, device=device).to(dtype)
    out = torch.empty(len(positions), HEADS, SIZE, dtype=dtype, device=device)
    seconds: dict[str, list[float]] = {"plan": [], "produce": [], "attend": []}
    for _ in range(20):
        clock = [now(device)]
        backend.plan(batch)
        clock.append(now(device))
        with layers[0].rope.at(positions):
            queries = [backend.produce(layer, qkv, positions) for layer in layers]
        clock.append(now(device))
        for layer, q in zip(layers, queries):
            backend.attend(layer, q, out)
        clock.append(now(device))
        for name, start, end in zip(seconds, clock, clock[1:]):
            seconds[name].append(end - start)
    return "  ".join(f"{name} {1000 * statistics.median(times):7.2f}" for name, times in seconds.items())


def now(device: torch.device) -> float:
    """Seconds, once the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
