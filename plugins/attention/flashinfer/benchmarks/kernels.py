"""FlashInfer's kernels as the plugin runs them, against the ceilings of the GPU.

``python plugins/attention/flashinfer/benchmarks/kernels.py``: decodes (TB/s of keys and values, all layers in a
CUDA graph), prefill (TFLOP/s, causal), and the host time of ``plan`` and of a layer. Medians; bfloat16.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from pymllm.interfaces import AttentionBatch, AttentionContext, GraphKey, KVDtype, KVGroup
from pymllm.layers.kernels.storage import rows_of
from pymllm.testing.attention_batch import make_attention_batch
from pymllm_attention_flashinfer.backend import FlashInferAttention
from pymllm_attention_flashinfer.plugin import Decode, FlashInferOptions, Prefill

SIZE, KV_HEADS, DEVICE, DTYPE = 128, 8, torch.device("cuda"), torch.bfloat16
CACHE_BYTES = 1 << 30
"""Of keys and values in all layers of a run: far more than the GPU's L2 cache holds."""

DECODES: dict[str, list[int]] = {
    **{f"{count} x 1024": [1024] * count for count in (1, 8, 32, 64, 128, 256)},
    "128 x 100-1900": [100 + 1800 * i // 127 for i in range(128)],
    "256 x 100-1900": [100 + 1800 * i // 255 for i in range(256)],
}
PREFILLS: dict[str, list[int]] = {
    **{f"1 x {tokens}": [tokens] for tokens in (256, 1024, 2048, 8192)},
    "8 x 1024": [1024] * 8,
}


class Setup:
    """A backend with as many layers as fill CACHE_BYTES, and a batch on scattered pages."""

    def __init__(
        self,
        options: FlashInferOptions,
        heads: int,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        page: int,
        kind: KVDtype,
    ) -> None:
        tokens = sum(-(-context // page) * page for context in context_lens)
        layers = max(2, min(28, CACHE_BYTES // (4 * KV_HEADS * SIZE * tokens)))
        group = KVGroup("full", layers, KV_HEADS, SIZE)
        context = AttentionContext(DEVICE, DTYPE, page, {"full": group}, kind)
        self.backend = FlashInferAttention(options, context)
        self.token_bytes = self.backend.page_bytes(group) / layers / page
        pages = tokens // page + 1
        self.backend.allocate(group, pages)
        for cache in self.backend._caches.values():
            fill(cache.data)
        shape = {"group": "full", "heads": heads, "kv_heads": KV_HEADS, "head_dim": SIZE, "scale": SIZE**-0.5}
        self.layers = [SimpleNamespace(index=i, q_norm=None, k_norm=None, rope=None, **shape) for i in range(layers)]
        free = random.Random(0).sample(range(1, pages), pages - 1)
        owned = [[free.pop() for _ in range(-(-context // page))] for context in context_lens]
        self.batch = make_attention_batch(query_lens, context_lens, owned, page, DEVICE)
        if max(query_lens) == 1:
            self.batch.graph_key = GraphKey(len(query_lens), len(query_lens))
        self.q = torch.randn(sum(query_lens), heads, SIZE, device=DEVICE).to(DTYPE)
        self.out = torch.empty_like(self.q)
        self.backend.plan(self.batch)

    def attend(self) -> None:
        """All layers."""
        for layer in self.layers:
            self.backend.attend(layer, self.q, self.out)

    def seconds(self) -> float:
        """Of the device, for one layer."""
        return device_seconds(self.attend) / len(self.layers)


def fill(cache: torch.Tensor) -> None:
    """Random numbers of moderate size; of an 8-bit float, random bits."""
    if cache.dtype.itemsize == 1:
        rows_of(cache).random_(0, 0x40)
    else:
        cache.normal_()


def device_seconds(work: Callable[[], object], repeats: int = 15) -> float:
    """Median time of a replay of ``work`` as a graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return statistics.median(times)


def host_microseconds(work: Callable[[], object], repeats: int = 100) -> float:
    """Median host time of a call; the device is given time to follow."""
    times = []
    for i in range(repeats):
        if i % 4 == 0:
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def eager(batch: AttentionBatch) -> AttentionBatch:
    """The batch as a step without a graph."""
    return AttentionBatch(**{**vars(batch), "graph_key": None})


def decodes(page: int, kind: KVDtype) -> None:
    """Microseconds of a layer and TB/s, on CUDA cores, on tensor cores and as the plugin chooses."""
    for heads in (16, 32):
        for name, lens in DECODES.items():
            found = []
            for decode in (Decode.cuda_cores, Decode.tensor_cores, Decode.auto):
                setup = Setup(FlashInferOptions(decode=decode), heads, [1] * len(lens), lens, page, kind)
                seconds = setup.seconds()
                traffic = setup.token_bytes * sum(lens) / seconds / 1e12
                found.append(f"{1e6 * seconds:6.1f} us {traffic:4.2f} TB/s")
            plan = host_microseconds(lambda s=setup: s.backend.plan(s.batch))  # type: ignore[misc]
            columns = "   ".join(f"{kind} {text}" for kind, text in zip(("cores", "tensor", "auto"), found))
            print(f"decode {heads}/{KV_HEADS} page {page} {name:15} {columns}   plan {plan:.0f} us", flush=True)


def prefills(page: int, kind: KVDtype) -> None:
    """Microseconds of a layer and TFLOP/s, by generation."""
    generations = (Prefill.fa2, Prefill.fa3) if kind is KVDtype.auto else (Prefill.fa2,)
    for heads in (16, 32):
        for name, lens in PREFILLS.items():
            found = []
            for prefill in generations:
                setup = Setup(FlashInferOptions(prefill=prefill), heads, lens, lens, page, kind)
                seconds = setup.seconds()
                plan = host_microseconds(lambda s=setup: s.backend.plan(s.batch))  # type: ignore[misc]
                work = 2 * heads * SIZE * sum(n * n for n in lens) / seconds / 1e12
                found.append(f"{prefill.value} {1e6 * seconds:6.1f} us {work:3.0f} TFLOP/s plan {plan:3.0f} us")
            print(f"prefill {heads}/{KV_HEADS} page {page} {name:8} {'   '.join(found)}", flush=True)


def hosts(page: int, kind: KVDtype) -> None:
    """Host time of a plan, captured and not, and of a layer."""
    setup = Setup(FlashInferOptions(), 16, [1] * 128, [1000] * 128, page, kind)
    batch = eager(setup.batch)
    captured = host_microseconds(lambda: setup.backend.plan(setup.batch))
    plan = host_microseconds(lambda: setup.backend.plan(batch))
    layer = host_microseconds(lambda: setup.backend.attend(setup.layers[0], setup.q, setup.out))
    print(f"host: plan of 128 decodes {captured:.0f} us captured, {plan:.0f} us eager; attend {layer:.0f} us")
    setup = Setup(FlashInferOptions(), 16, [1] * 8 + [300], [1000] * 9, page, kind)
    plan = host_microseconds(lambda: setup.backend.plan(setup.batch))
    layer = host_microseconds(lambda: setup.backend.attend(setup.layers[0], setup.q, setup.out))
    print(f"host: plan of 8 decodes and a chunk {plan:.0f} us; attend {layer:.0f} us")


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--only", default="decodes,prefills,hosts")
    parser.add_argument("--kv-dtype", default="auto", choices=["auto", "fp8"])
    options = parser.parse_args()
    wanted = options.only.split(",")
    with torch.inference_mode():
        for name, measure in (("hosts", hosts), ("decodes", decodes), ("prefills", prefills)):
            if name in wanted:
                measure(options.page_size, KVDtype(options.kv_dtype))


if __name__ == "__main__":
    main()
