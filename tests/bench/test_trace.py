"""``pymllm bench trace`` on a trace whose every number was worked out by hand.

Microseconds; two streams of one GPU; the host's main thread launches, another one computes:

    stream 7  |gemm 100-130|            |gemm 150-170|                  |copy 400-410|
    stream 9        |norm 120-140|                       |gemm 240-260|                |fill 410-415|
    host      |launch 90-95| step 95-235: |aten::add 141-149: |launch 143-145|| python wait 180-230|
              launch 235-238, synchronize 300-390

Busy: 100-140, 150-170, 240-260, 400-415 = 95 of 315. Gaps: 10, 70, 140.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pymllm.bench import gpu_use as module
from pymllm.bench.gpu_use import NOTHING, NamedTime, gpu_use
from pymllm.bench.trace_file import Activity, read_trace
from pymllm.cli import main
from result_files import assert_documented


def event(cat: str, name: str, start: float, end: float, tid: int = 7, pid: int = 0, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "pid": pid, "tid": tid, **more}


def host(cat: str, name: str, start: float, end: float, tid: int = 1) -> dict[str, Any]:
    return event(cat, name, start, end, tid, pid=4242, args={"External id": 3})


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
    event("kernel", "gemm", 100, 130),
    event("kernel", "norm", 120, 140, tid=9),
    event("kernel", "gemm", 150, 170),
    event("kernel", "gemm", 240, 260, tid=9),
    event("gpu_memcpy", "Memcpy DtoH", 400, 410),
    event("gpu_memset", "Memset", 410, 415, tid=9),
    event("gpu_user_annotation", "ProfilerStep#0", 100, 415),
    host("cuda_runtime", "cudaGraphLaunch", 90, 95),
    host("user_annotation", "ProfilerStep#0", 80, 410),
    host("user_annotation", "step", 95, 235),
    host("cpu_op", "aten::add", 141, 149),
    host("cuda_runtime", "cudaLaunchKernel", 143, 145),
    host("python_function", "wait", 180, 230),
    host("cuda_runtime", "cudaLaunchKernel", 235, 238),
    host("cuda_runtime", "cudaStreamSynchronize", 300, 390),
    host("cpu_op", "aten::mm", 141, 399, tid=2),
    {"ph": "s", "id": 3, "pid": 4242, "tid": 1, "ts": 143, "cat": "ac2g", "name": "ac2g"},
]


@pytest.fixture(params=["json", "json.gz"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    raw = json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": EVENTS}).encode()
    path = tmp_path / f"t.{request.param}"
    path.write_bytes(gzip.compress(raw) if request.param == "json.gz" else raw)
    return path


def test_the_hand_worked_trace(file: Path) -> None:
    (use,) = gpu_use(read_trace(file))
    assert (use.device, use.streams, use.kernels, use.copies, use.steps) == (0, 2, 4, 2, 1)
    assert (use.window_us, use.busy_us) == (315, 95)
    assert use.busy_share == pytest.approx(95 / 315)
    assert use.launches == {"cudaGraphLaunch": 1, "cudaLaunchKernel": 2}
    assert [(one.at_least_us, one.count, one.total_us) for one in use.idle] == [
        (0, 0, 0), (5, 1, 10), (20, 1, 70), (100, 1, 140), (1000, 0, 0)
    ]  # fmt: skip
    longest, middle, short = use.gaps
    assert (longest.start_us, longest.length_us, longest.after, longest.before) == (160, 140, "gemm", "Memcpy DtoH")
    assert longest.host == [NamedTime("cudaStreamSynchronize", 90), NamedTime(NOTHING, 50)]
    assert (middle.start_us, middle.length_us) == (70, 70)
    # 170-240: step 170-180 and 230-235, wait 180-230, launch 235-238, nothing 238-240.
    assert middle.host == [
        NamedTime("wait", 50), NamedTime("step", 15), NamedTime("cudaLaunchKernel", 3), NamedTime(NOTHING, 2)
    ]  # fmt: skip
    # 140-150: step 140-141 and 149-150, add 141-143 and 145-149, launch 143-145.
    assert {one.name: one.total_us for one in short.host} == {"step": 2, "aten::add": 6, "cudaLaunchKernel": 2}
    assert (short.after, short.before) == ("norm", "gemm")
    assert {one.name: one.total_us for one in use.host_while_idle} == {
        "cudaStreamSynchronize": 90, NOTHING: 52, "wait": 50, "step": 17, "aten::add": 6, "cudaLaunchKernel": 5,
    }  # fmt: skip
    assert sum(one.total_us for one in use.host_while_idle) == 220
    gemm = use.top[0]
    assert (gemm.name, gemm.count, gemm.total_us) == ("gemm", 3, 70)
    assert gemm.mean_us == pytest.approx(70 / 3)
    assert gemm.share == pytest.approx(70 / 105)
    assert [one.name for one in use.top] == ["gemm", "norm", "Memcpy DtoH", "Memset"]


def test_several_gpus_are_looked_at_apart(tmp_path: Path) -> None:
    more = [event("kernel", "other", 0, 10, pid=1), event("kernel", "other", 30, 40, pid=1)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": EVENTS + more}))
    first, second = gpu_use(read_trace(path), most=1)
    assert (first.device, first.busy_us, len(first.gaps), len(first.top)) == (0, 95, 1, 1)
    assert (second.device, second.window_us, second.busy_us) == (1, 40, 20)


def test_the_innermost_activity_counts() -> None:
    nested = [Activity(0, 10, "a", ""), Activity(2, 8, "b", ""), Activity(3, 4, "c", ""), Activity(8, 9, "d", "")]
    apart = [Activity(20, 30, "e", ""), Activity(25, 31, "f", "")]  # ends after what encloses it: a rounding
    pieces = [(one.start, one.end, one.name) for one in module.innermost(nested + apart)]
    assert pieces == [
        (0, 2, "a"), (2, 3, "b"), (3, 4, "c"), (4, 8, "b"), (8, 9, "d"), (9, 10, "a"), (20, 25, "e"), (25, 31, "f")
    ]  # fmt: skip


def test_the_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "trace", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "GPU 0 busy 30.2 % of 0.32 ms, 1 steps: 4 kernels, 2 copies and fills in 2 streams" in shown
    assert "2 cudaLaunchKernel, 1 cudaGraphLaunch" in shown
    assert "140.0 us at 0.16 ms, after gemm" in shown
    assert "before Memcpy DtoH; host: cudaStreamSynchronize 90.0 us, (nothing recorded) 50.0 us" in shown
    assert main(["bench", "trace", str(file), "--json", "--top", "2"]) == 0
    (use,) = json.loads(capsys.readouterr().out)["gpus"]
    assert_documented(use, module)
    assert use["busy_us"] == 95
    assert [one["name"] for one in use["top"]] == ["gemm", "norm"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "is no Chrome trace"),
        (b"[1, 2", "is no Chrome trace"),
        (b"\x1f\x8b\x08\x00broken", "is no Chrome trace"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}', "no work of a GPU"),
    ],
)
def test_what_is_no_trace_is_one_line(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t"
    if content is not None:
        path.write_bytes(content)
    assert main(["bench", "trace", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
