"""An LLM that is forgotten, dropped or used from a script without a guard neither hangs nor stays."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from pymllm import LLM, SamplingParams

SCRIPT = """
from pymllm import LLM, SamplingParams
llm = LLM({folder!r}, {{"engine.max_total_tokens": 4096}}, progress=False)
open_stream = llm.stream("hello", SamplingParams(max_tokens=900, ignore_eos=True))
next(open_stream)
print(len(llm.generate("hello", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids), "tokens")
"""


def engines():
    return [thread for thread in threading.enumerate() if thread.name == "pymllm-engine"]


def test_a_dropped_llm_ends_its_engine(folder, small):
    before = len(engines())
    llm = LLM(folder, small, progress=False)
    llm.generate("hello", SamplingParams(max_tokens=2))
    assert len(engines()) == before + 1
    del llm
    gc.collect()
    assert len(engines()) == before


def test_an_unguarded_script_on_standard_input_ends_by_itself_with_work_still_open(folder):
    script = SCRIPT.format(folder=str(folder))
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 tokens\n", "")
