"""A profile of an engine on a GPU holds the kernels of its steps, also of those that are replayed from graphs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engines import answers, start
from pymllm.bench.gpu_use import NOTHING, gpu_use
from pymllm.bench.trace_file import read_trace
from pymllm.engine.messages import ProfileRequest
from pymllm.testing.tiny import make_tiny_checkpoint

pytestmark = pytest.mark.gpu

STEPS = 20


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "no graphs"])
@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_what_the_gpu_did_in_so_many_steps(tmp_path: Path, process: bool, graphs: bool) -> None:
    folder = make_tiny_checkpoint(tmp_path / "tiny", "qwen3")
    rng = random.Random(3)
    prompts = [[rng.randrange(250) for _ in range(30)] for _ in range(4)]
    options = {"engine.device": "cuda", "attention.plugin": "triton", "engine.cuda_graphs": graphs}
    client = start(folder, options, process=process)
    try:
        expected = answers(client, prompts, 60)
        profile = client.start_profile(ProfileRequest(folder=str(tmp_path), steps=STEPS))
        assert answers(client, prompts, 60) == expected
        assert answers(client, prompts, 60) == expected
    finally:
        client.close()
    trace = read_trace(Path(profile.path))
    (use,) = gpu_use(trace)
    assert use.steps == STEPS
    layers = 3
    assert use.kernels >= STEPS * layers  # each layer's attention is a kernel of its own at least
    assert 0 < use.busy_share <= 1
    assert use.busy_us + sum(one.total_us for one in use.idle) == pytest.approx(use.window_us)
    assert sum(use.launches.values()) > 0
    assert any("GraphLaunch" in name for name in use.launches) == graphs
    assert {one.name for one in use.host_while_idle} - {NOTHING}, "the thread that launches is among those recorded"
    if graphs:
        assert use.kernels > 2 * sum(use.launches.values()), "the kernels inside the graphs are recorded one by one"
