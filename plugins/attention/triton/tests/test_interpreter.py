"""The kernels compute what the contract says, without a GPU: through Triton's interpreter, at small shapes.

Triton decides when it is imported whether it interprets, so this takes a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LONG = ("many_decodes", "long_prompt", "keep_their_precision", "alone_as_in", "norms_rotates")
OF_ANY_DTYPE = ("padded", "layers_keep", "nan_of", "packed_sequences", "decodes_across", "in_chunks", "int8", "int4")
"""What these check does not depend on the dtype: float32 is enough."""
OF_CODES = ("nan_of", "decodes_across", "copied_pages")
"""Of the cases with a cache of codes, beside those that ask for one."""


def test_the_conformance_kit_passes() -> None:
    file = Path(__file__).with_name("interpreted_conformance.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    short = (
        f"not ({' or '.join(LONG)}) and not (bfloat16 and ({' or '.join(OF_ANY_DTYPE)}))"
        f" and not (InterpretedCodes and not ({' or '.join(OF_CODES)}))"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([*command, "-k", short], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
