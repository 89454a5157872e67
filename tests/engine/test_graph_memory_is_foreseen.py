"""What all graphs take is foreseen from a few; and on a GPU it is about what they then do take."""

from __future__ import annotations

import logging
import re

import pytest

from engines import start
from pymllm.engine.cuda.foresight import foresee
from pymllm.testing.tiny import make_tiny_checkpoint


class Kind:
    def __init__(self, sizes: list[int], per_token: int, each: int, once: int = 0) -> None:
        self.sizes, self._per_token, self._each, self._once = sizes, per_token, each, once
        self.captured: list[int] = []
        self._loaded: set[bool] = set()

    def capture(self, sizes: list[int]) -> None:
        """The largest size runs other kernels than the others."""
        self.captured += sizes
        self._loaded.update(size == max(self.sizes) for size in sizes)

    def forget(self) -> None:
        self.captured.clear()

    @property
    def taken(self) -> int:
        shared = self._per_token * max(self.captured, default=0)
        return self._once * len(self._loaded) + shared + self._each * len(self.captured)


def test_the_largest_counts_once_and_every_graph_for_itself() -> None:
    kinds = [Kind([8, 16, 32, 64, 128], 10, 7, once=10_000), Kind([1, 2], 100, 3), Kind([5], 0, 1)]
    released: list[int] = []

    def taken() -> int:
        return sum(kind.taken for kind in kinds)

    found = foresee(kinds, lambda kind, sizes: kind.capture(sizes), taken, lambda: released.append(taken()))
    assert found == (10 * 128 + 5 * 7) + (100 * 2 + 2 * 3) + 1
    assert [kind.taken for kind in kinds] == [20_000, 0, 0]
    assert released == [20_000, 20_000]


@pytest.mark.gpu
def test_on_a_gpu(tmp_path, caplog) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3")
    with caplog.at_level(logging.INFO, logger="pymllm"):
        client = start(folder, {"engine.device": "cuda", "model.dtype": "bfloat16", "engine.max_batch_tokens": 2048})
    client.close()
    [taken] = re.findall(r"they take ([\d.]+) GiB", caplog.text)
    foreseen = client.info.graph_bytes / 2**30
    assert float(taken) * 0.7 - 0.05 < foreseen < float(taken) * 2 + 0.25
