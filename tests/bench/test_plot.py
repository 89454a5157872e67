"""``pymllm bench plot`` draws every kind of result, and says what it cannot read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pymllm.bench.panels import KINDS
from pymllm.cli import main


def spread(median: float, best: float, worst: float) -> dict[str, Any]:
    return {"median": median, "best": best, "worst": worst, "values": [best, median, worst]}


ONE_BATCH = {
    "benchmark": "one-batch",
    "run_name": "a",
    "batch_size": 4,
    "input_len": 100,
    "output_len": 8,
    "spread": {
        "prefill_latency": spread(0.2, 0.1, 0.4),
        "median_decode_latency": spread(0.02, 0.01, 0.04),
        "total_latency": spread(1, 1, 1),
    },
}
PERCENTILES = {"p50": 0.01, "p90": 0.02, "p99": 0.03}
SERVE = {
    "benchmark": "serve",
    "run_name": None,
    "model": "m",
    "concurrency": 4,
    "request_rate": "inf",
    "num_requests": 9,
    "input_len": [1, 2],
    "output_len": [3, 4],
    "output_tok_s": 50.0,
    "ttft_s": PERCENTILES,
    "itl_s": None,
}
LENGTHS = {"least": 1, "most": 9}
THROUGHPUT = {
    "benchmark": "throughput",
    "run_name": "t",
    "num_prompts": 8,
    "input_len": LENGTHS,
    "output_len": LENGTHS,
    "output_tok_s": spread(5, 6, 4),
    "total_tok_s": spread(50, 60, 40),
}
LATENCY = {
    "benchmark": "latency",
    "run_name": "l",
    "batch_size": 1,
    "input_len": 8,
    "output_len": 1,
    "shared_prefix": 0,
    "ttft_s": spread(1, 1, 1),
    "tpot_s": None,
    "output_tok_s": spread(3, 3, 3),
}


def values(line: dict[str, Any]) -> dict[str, Any]:
    return {panel.title: panel.value(line) for panel in KINDS[line["benchmark"]].panels}


def test_values_are_in_the_units_of_the_axes() -> None:
    assert values(ONE_BATCH) == {
        "prefill latency": pytest.approx((200, 100, 400)),
        "prefill throughput": pytest.approx((2000, 1000, 4000)),
        "decode latency": pytest.approx((20, 10, 40)),
        "decode throughput": pytest.approx((200, 100, 400)),
    }
    assert values(SERVE) == {
        "server throughput": (50, 50, 50),
        "time to the first token, p50 to p99": pytest.approx((10, 10, 30)),
        "time between tokens, p50 to p99": None,
    }
    assert values(THROUGHPUT)["offline throughput"] == (5, 4, 6)
    assert values(LATENCY)["time per token after it"] is None


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(*found: dict[str, Any] | str) -> str:
        path = tmp_path / "r.jsonl"
        path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in found))
        return str(path)

    return write


@pytest.mark.parametrize("name", ["p.png", "p.svg"])
def test_every_kind_is_drawn(write: Any, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    nothing = {**ONE_BATCH["spread"], "median_decode_latency": None}  # type: ignore[dict-item]
    found = [
        ONE_BATCH, {**ONE_BATCH, "batch_size": 8, "run_name": "b"}, {**ONE_BATCH, "output_len": 1, "spread": nothing},
        SERVE, {**SERVE, "concurrency": None}, {**SERVE, "concurrency": 16}, THROUGHPUT, LATENCY, "",
    ]  # fmt: skip
    assert main(["bench", "plot", write(*found), "-o", str(tmp_path / name)]) == 0
    starts = {".png": b"\x89PNG", ".svg": b"<?xml"}
    picture = (tmp_path / name).read_bytes()
    assert picture.startswith(starts[Path(name).suffix])
    if name == "p.svg":
        drawn = picture.decode()
        for text in ("prompt tokens / s", "batch size (requests)", "a, batch 4", "b, batch 8", "open requests"):
            assert f"<!-- {text}" in drawn


def test_without_matplotlib_it_says_what_to_install(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "plot", write(SERVE), "-o", str(tmp_path / "p.png")]) == 2
    assert "pip install 'pymllm[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "name", "message"),
    [
        ("{", "p.png", "line 2 is no JSON object"),
        ('{"benchmark": "other"}', "p.png", "line 2 is no result of 'pymllm bench"),
        ("", "p.txt", "must end in .png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_read_is_named(
    line: str, name: str, message: str, write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "plot", write(SERVE, line), "-o", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_empty_and_missing_files(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plot", write(), "-o", str(tmp_path / "p.png")]) == 2
    assert "there is no result" in capsys.readouterr().err
    assert main(["bench", "plot", str(tmp_path / "none"), "-o", str(tmp_path / "p.png")]) == 2
    assert "cannot be read" in capsys.readouterr().err
