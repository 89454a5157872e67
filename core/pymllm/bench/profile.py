"""Traces of a benchmark's stages: Chrome traces by ``torch.profiler``, or ranges that Nsight Systems captures.

``--profile`` writes a file ``RUN-SETTING-STAGE.trace.json.gz`` for each stage (prefill, decode) of each setting, to be
opened in chrome://tracing or ui.perfetto.dev. ``--profile cuda`` calls cudaProfilerStart and cudaProfilerStop
around each stage instead, inside an NVTX range of the same name, for::

    nsys profile --capture-range=cudaProfilerApi --capture-range-end=repeat pymllm bench one-batch ... --profile cuda

A traced run is one more run after the measured ones, since tracing takes time itself.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from pymllm.errors import ConfigError
from pymllm.trace import Recording

DEFAULT_RUN = "one-batch"


class Profiler(ABC):
    """Traces what runs inside ``with profiler.stage("b8-in256-out128", "decode"):``."""

    @abstractmethod
    def stage(self, setting: str, stage: str) -> AbstractContextManager[None]:
        """Trace a stage of a setting."""


class TorchProfiler(Profiler):
    """Writes Chrome traces into ``folder``, which is made if it is missing. written: told of each file.

    Raises ConfigError for a folder that cannot be written to.
    """

    def __init__(
        self, folder: Path, run_name: str | None, device: torch.device, written: Callable[[Path], None]
    ) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"traces cannot be written to '{folder}': {error.strerror}; set --profile-dir") from error
        self._folder = folder
        self._run = _file_name(run_name or DEFAULT_RUN)
        self._device = device
        self._written = written

    @contextmanager
    def stage(self, setting: str, stage: str) -> Iterator[None]:
        recording = Recording(str(self._device))
        try:
            yield
        finally:
            recording.stop()
        path = self._folder / f"{self._run}-{setting}-{stage}.trace.json.gz"
        recording.write(path)
        self._written(path)


class CudaProfiler(Profiler):
    """Opens a cudaProfilerApi range for each stage. Raises ConfigError without a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise ConfigError("--profile cuda needs a CUDA device, and this engine is on a CPU; use --profile torch")
        self._device = device

    @contextmanager
    def stage(self, setting: str, stage: str) -> Iterator[None]:
        torch.cuda.synchronize(self._device)
        torch.cuda.profiler.start()
        torch.cuda.nvtx.range_push(f"{setting} {stage}")
        try:
            yield
        finally:
            torch.cuda.synchronize(self._device)
            torch.cuda.nvtx.range_pop()
            torch.cuda.profiler.stop()


def _file_name(name: str) -> str:
    """The name with nothing in it that a file name may not have."""
    return re.sub(r"[^\w.-]+", "_", name)
