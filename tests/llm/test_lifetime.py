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


def test_an_llm_that_is_collected_on_its_engines_thread_ends_too(folder, small):
    """Deltas are delivered on the engine's thread; the last reference is dropped there."""
    before = len(engines())
    held = [LLM(folder, small, progress=False)]
    ended = threading.Event()
    frontend = held[0].frontend

    def drop(delta):
        if delta.finish_reason is not None:
            held.clear()
            gc.collect()
            ended.set()

    frontend.start([1, 2, 3], SamplingParams(max_tokens=2), drop)
    assert ended.wait(60)
    frontend = None
    for thread in engines()[before:]:
        thread.join(60)
    assert len(engines()) == before


def test_an_unguarded_script_on_standard_input_ends_by_itself_with_work_still_open(folder):
    script = SCRIPT.format(folder=str(folder))
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 tokens\n", "")
