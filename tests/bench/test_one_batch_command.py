"""``pymllm bench one-batch`` and ``pymllm warmup`` as they are typed."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pymllm.bench import one_batch, results
from pymllm.cli import main
from result_files import assert_documented, lines

ASKED = (
    "run_name", "batch_size", "input_len", "output_len", "prefill_latency", "prefill_throughput",
    "median_decode_latency", "median_decode_throughput", "total_latency", "overall_throughput", "device", "dtype",
    "quant", "attention", "cuda_graph",
)  # fmt: skip
"""Fields that the command is asked for by name."""

pytestmark = pytest.mark.usefixtures("small_ceilings")

SIZES = ["--batch-size", "1", "2", "--input-len", "20", "--output-len", "3", "--repeats", "1"]


@pytest.fixture
def model(settings: dict[str, Any]) -> list[str]:
    keys = ("model.path", "model.dtype", "engine.max_total_tokens", "log.level")
    return [*(f"{key}={settings[key]}" for key in keys), "engine.device=cpu"]


def test_one_line_for_each_setting(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    command = ["bench", "one-batch", *model, *SIZES, "--run-name", "first", "--result-filename", str(file)]
    assert main(command) == 0
    assert main(command) == 0
    found = lines(file)
    assert [line["batch_size"] for line in found] == [1, 2, 1, 2]
    assert set(ASKED) <= set(found[0])
    assert_documented(found[0], results, one_batch)
    assert {(line["benchmark"], line["run_name"], line["quant"]) for line in found} == {("one-batch", "first", None)}
    assert (found[0]["device"], found[0]["dtype"], found[0]["cuda_graph"]) == ("cpu", "float32", False)
    assert found[0]["attention"] == found[0]["engine"]["plugins"]["attention"].split()[0]
    printed = capsys.readouterr().out
    assert "TFLOP/s" in printed
    assert f"{found[-1]['median_decode_throughput']:,.1f}" in printed


@pytest.mark.parametrize("by", ["option", "environment", "default"])
def test_a_trace_for_each_stage(
    by: str, model: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYMLLM_TORCH_PROFILER_DIR", raising=False)
    options = ["--profile-dir", "mine/traces"] if by == "option" else []
    if by != "default":
        monkeypatch.setenv("PYMLLM_TORCH_PROFILER_DIR", str(tmp_path / "elsewhere"))
    sizes = ["--batch-size", "2", "--input-len", "20", "--output-len", "3", "--repeats", "1"]
    assert main(["bench", "one-batch", *model, *sizes, "--run-name", "a b", "--profile", *options]) == 0
    folder = {"option": "mine/traces", "environment": "elsewhere", "default": "profiles"}[by]
    names = [f"a_b-b2-in20-out3-{stage}.trace.json.gz" for stage in ("decode", "prefill")]
    assert sorted(path.name for path in (tmp_path / folder).iterdir()) == names
    for name in names:
        trace = json.loads(gzip.decompress((tmp_path / folder / name).read_bytes()))
        assert any(event.get("name", "").startswith("aten::") for event in trace["traceEvents"])
    assert f"trace written to {folder if by != 'environment' else tmp_path / folder}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "cuda"], "--profile cuda needs a CUDA device"),
        (["--profile-dir", "x"], "--profile-dir has an effect only with --profile"),
        (["--profile", "torch", "--profile-dir", "/dev/null/x"], "traces cannot be written to '/dev/null/x'"),
        (["--result-filename", "/nowhere/r.jsonl"], "cannot be written to"),
        (["--batch-size", "300"], "set it to at least 300"),
        (["engine.overlap=true"], "engine.overlap: true needs a CUDA device"),
    ],
)
def test_what_the_user_can_fix_is_one_line(
    options: list[str], message: str, model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "one-batch", *model, *options]) == 2
    *notes, error = capsys.readouterr().err.splitlines()
    assert message in error
    assert all("the load of this machine" in note for note in notes)


def test_warmup_says_what_it_did(
    model: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pymllm_attention_torch.backend import TorchAttention

    monkeypatch.setattr(TorchAttention, "warmup", lambda self: [f"kernels for page size {self.context.page_size}"])
    assert main(["warmup", *model, "attention=torch", "cache.page_size=8", "engine.max_running_requests=2"]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split() == ["SECONDS", "DONE"]
    times, done = zip(*(re.fullmatch(r" *(\d+\.\d\d)  (.*)", row).groups() for row in rows))  # type: ignore[union-attr]
    assert sum(map(float, times[:-1])) == pytest.approx(float(times[-1]), abs=0.1)
    assert "kernels for page size 8" in done
    assert "worst-case step run, KV pool allocated" in done
    assert "steps run, greedy: batches of 1, 2" in done
    assert done[-1] == "in all"


def test_warmup_refuses_as_a_run_would(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", *model, "attention=tourch"]) == 2
    assert "Did you mean 'torch'?" in capsys.readouterr().err
