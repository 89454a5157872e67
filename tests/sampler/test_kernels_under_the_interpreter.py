"""Runs the kernels' tests under Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="is the child")
@pytest.mark.parametrize("name", ["kernels_choose_as_torch_does", "device_edits_are_those_of_the_host"])
def test_kernels_under_the_interpreter(name):
    here = Path(__file__).parent
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(here / f"test_{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=here.parents[1], timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1], "all were skipped"
