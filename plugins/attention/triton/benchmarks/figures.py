"""Times the kernels on a GPU against its bandwidth and PyTorch's attention: ``python figures.py``.

Decode: a captured graph of several layers, each with its own cache (what fits the L2 cache is not found there);
TB/s counts every key and value once. Prefill and packed attention: TFLOP/s counts products that causality needs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import torch
import torch.nn.functional as F

from pymllm.interfaces import AttentionContext, KVDtype, KVGroup
from pymllm.layers.kernels.storage import rows_of
from pymllm.testing.attention_batch import make_attention_batch
from pymllm.testing.attention_rig import Layer
from pymllm_attention_triton.backend import TritonAttention
from pymllm_attention_triton.cache import PagedCache
from pymllm_attention_triton.configs import LaunchConfig, decode_config, device_of, prefill_config, varlen_config
from pymllm_attention_triton.launch import Step, assign, decode, packed, prefill

DEVICE = torch.device("cuda")


@dataclass
class Case:
    """A step: a cache with several layers, their descriptions, q and room for the output."""

    cache: PagedCache
    layers: list[Layer]
    step: Step
    q: torch.Tensor
    out: torch.Tensor


def make_case(
    queries: list[int], contexts: list[int], heads: int, kv_heads: int, size: int = 128, layers: int = 1,
    page: int = 16, kind: KVDtype = KVDtype.auto,
) -> Case:  # fmt: skip
    """Requests with these new tokens and context lengths, their pages shuffled."""
    pages = [-(-context // page) for context in contexts]
    order = (torch.randperm(sum(pages)) + 1).split(pages)
    batch = make_attention_batch(queries, contexts, [part.tolist() for part in order], page, DEVICE)
    group = KVGroup("full", layers, kv_heads, size)
    context = AttentionContext(DEVICE, torch.bfloat16, page, {"full": group}, kind)
    cache = PagedCache(group, sum(pages) + 1, context)
    for layer in cache.data:
        if layer.dtype.itemsize == 1:
            rows_of(layer).random_(0, 0x40)  # moderate numbers
        else:
            layer.normal_()
    counters = torch.zeros(len(queries) * kv_heads, dtype=torch.int32, device=DEVICE)
    q = torch.randn(sum(queries), heads, size, dtype=torch.bfloat16, device=DEVICE)
    descriptions = [Layer("full", i, heads, kv_heads, size, size**-0.5) for i in range(layers)]
    return Case(cache, descriptions, Step(batch, counters), q, torch.empty_like(q))


def microseconds(run: Callable[[], object], repeats: int = 9, warm_up: float = 0.03) -> float:
    """Median time of a captured graph of ``run``."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    # The clocks of an idle GPU take a while to rise.
    started = perf_counter()
    while perf_counter() - started < warm_up:
        graph.replay()
        torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def decode_time(case: Case, config: LaunchConfig | None = None, repeats: int = 9, warm_up: float = 0.03) -> float:
    """Microseconds of a layer, with its share of cutting the contexts."""
    group = case.q.shape[1] // case.cache.data.shape[2]
    chosen = config or decode_config(case.q.shape[2], 2, group, case.step.requests, case.cache.bits)

    def run() -> None:
        cut = assign(case.step, case.layers[0].kv_heads, chosen, DEVICE)
        cut.run()
        for layer in case.layers:
            decode(case.out, case.q, case.cache, layer, case.step, cut.arguments[0], chosen).run()

    return microseconds(run, repeats, warm_up) / len(case.layers)


def prefill_time(case: Case, repeat: int = 8, config: LaunchConfig | None = None) -> float:
    """Microseconds of a layer."""
    group = case.q.shape[1] // case.cache.data.shape[2]
    chosen = config or prefill_config(device_of(DEVICE), case.q.shape[2], 2, group, case.step.longest)

    def run() -> None:
        for _ in range(repeat):
            prefill(case.out, case.q, case.cache, case.layers[0], case.step, chosen).run()

    return microseconds(run) / repeat


def varlen_time(
    tokens: int, sequences: int, heads: int, size: int, repeat: int = 4, config: LaunchConfig | None = None
) -> float:
    """Microseconds of packed attention of equally long sequences."""
    qkv = torch.randn(tokens * sequences, 3 * heads, size, dtype=torch.bfloat16, device=DEVICE)
    q, k, v = qkv.split(heads, 1)
    starts = [i * tokens for i in range(sequences + 1)]
    on_device = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    out = torch.empty_like(q)
    chosen = config or varlen_config(device_of(DEVICE), size, 2)

    def run() -> None:
        for _ in range(repeat):
            packed(out, q, k, v, starts, on_device, size**-0.5, chosen).run()

    return microseconds(run) / repeat


def sdpa_time(batch: int, tokens: int, heads: int, kv_heads: int, size: int, causal: bool) -> float:
    """Microseconds of PyTorch's attention on contiguous tensors, KV heads repeated beforehand."""
    q, k, v = (torch.randn(batch, heads, tokens, size, dtype=torch.bfloat16, device=DEVICE) for _ in range(3))

    def run() -> None:
        for _ in range(4):
            F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return microseconds(run) / 4


def kv_bytes(case: Case) -> float:
    """Bytes of keys and values that a layer reads, in whole pages' proportion."""
    page = case.cache.data[0, 0]  # keys, values and, of codes, scales
    return sum(case.step.batch.context_lens) * page.numel() * page.element_size() / case.cache.page_size


def causal_flop(queries: list[int], contexts: list[int], heads: int, size: int) -> float:
    """Multiplications and additions that causality needs."""
    return sum(4.0 * size * heads * (q * (c - q) + q * (q + 1) / 2) for q, c in zip(queries, contexts))


DECODES = [(1, 600, 28), (8, 600, 16), (32, 600, 8), (128, 600, 4), (64, 1024, 4), (128, 1024, 4), (256, 1024, 2),
           (64, 8192, 2)]  # fmt: skip
PREFILLS = [([256], [256]), ([1024], [1024]), ([2048], [2048]), ([8192], [8192]), ([1024] * 8, [1024] * 8)]


def host_times() -> str:
    """Microseconds that the host takes for a plan of 256 decodes, and to launch a layer's attention."""
    case = make_case([1] * 256, [100] * 256, 16, 8)
    layer, group = case.layers[0], KVGroup("full", 1, 8, 128)
    backend = TritonAttention(None, AttentionContext(DEVICE, torch.bfloat16, 16, {"full": group}))
    backend.allocate(group, 4096)
    backend.plan(case.step.batch)
    started = perf_counter()
    backend.prepare(layer)
    prepared = perf_counter() - started
    backend.attend(layer, case.q, case.out)
    torch.cuda.synchronize()
    times = [perf_counter()]
    for _ in range(100):
        backend.plan(case.step.batch)
    times.append(perf_counter())
    for _ in range(100):
        backend.attend(layer, case.q, case.out)
    times.append(perf_counter())
    torch.cuda.synchronize()
    plan, attend = ((b - a) * 1e4 for a, b in pairwise(times))
    return f"host: prepare {prepared:.1f} s, plan {plan:.1f} us, attend {attend:.1f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-dtype", default="auto", choices=["auto", "fp8", "int8", "int4"])
    kind = KVDtype(parser.parse_args().kv_dtype)
    for heads, kv_heads in ((16, 8), (32, 8)):
        for requests, context, layers in DECODES:
            case = make_case([1] * requests, [context] * requests, heads, kv_heads, layers=layers, kind=kind)
            time = decode_time(case)
            rate = kv_bytes(case) / time / 1e6
            print(f"decode {heads}/{kv_heads} {requests} x {context}: {time:.1f} us, {rate:.2f} TB/s")
        lengths = torch.randint(100, 2000, (256,), generator=torch.Generator().manual_seed(0)).tolist()
        case = make_case([1] * 256, lengths, heads, kv_heads, layers=2, kind=kind)
        time = decode_time(case)
        rate = kv_bytes(case) / time / 1e6
        print(f"decode {heads}/{kv_heads} 256 x 100-2000: {time:.1f} us, {rate:.2f} TB/s")
        for queries, contexts in [*PREFILLS, ([512], [8192])]:
            time = prefill_time(make_case(queries, contexts, heads, kv_heads, kind=kind))
            rate = causal_flop(queries, contexts, heads, 128) / time / 1e6
            line = f"prefill {heads}/{kv_heads} {len(queries)} x {queries[0]} of {contexts[0]}: "
            line += f"{time:.1f} us, {rate:.0f} TFLOP/s"
            if queries == contexts:
                line += f" (SDPA {sdpa_time(len(queries), queries[0], heads, kv_heads, 128, True):.1f} us)"
            print(line)
    print(host_times())
    for tokens, sequences, size in ((4096, 1, 72), (4096, 1, 64), (1024, 8, 72), (4096, 1, 128)):
        time = varlen_time(tokens, sequences, 16, size)
        rate = 4.0 * sequences * tokens * tokens * 16 * size / time / 1e6
        other = sdpa_time(sequences, tokens, 16, 16, size, False)
        print(
            f"packed 16 heads x {size}, {sequences} x {tokens}: {time:.1f} us, {rate:.0f} TFLOP/s (SDPA {other:.1f} us)"
        )


if __name__ == "__main__":
    main()
