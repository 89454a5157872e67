"""Chrome traces by ``torch.profiler``: what a thread and its device do, and where the files go."""

from __future__ import annotations

import gzip
import os
import shutil
import warnings
from pathlib import Path

FOLDER_VARIABLE = "PYMLLM_TORCH_PROFILER_DIR"
DEFAULT_FOLDER = "profiles"

_LEVEL = 3
"""Of compression: a trace shrinks to a tenth in a third of the time that the highest level takes."""


def trace_folder(given: str | Path | None) -> Path:
    """The folder for traces: as given, else $PYMLLM_TORCH_PROFILER_DIR, else ./profiles."""
    return Path(given or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER).expanduser()


class Recording:
    """Records the calling thread, and a CUDA device, from its making until ``stop`` on the same thread."""

    def __init__(self, device: str, *, stacks: bool = False) -> None:
        """device: "cpu", or "cuda:N", whose kernels are recorded too. stacks: also every Python function, which makes
        Python several times slower. Raises RuntimeError while another recording of this process runs."""
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        self._device = torch.device(device)
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with warnings.catch_warnings():
            # Of profilers with several cycles; this one has a single cycle.
            warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
            # With a schedule, even a constant one, step() marks the steps.
            self._profile = profile(
                activities=activities, with_stack=stacks, schedule=lambda step: ProfilerAction.RECORD
            )
            self._profile.start()

    def mark(self) -> None:
        """A step has ended and the next one begins."""
        self._profile.step()

    def stop(self) -> None:
        """Wait for the device and stop."""
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._profile.stop()

    def write(self, path: Path) -> None:
        """Write the trace, gzipped; the file appears when it is complete. Raises OSError."""
        plain, packed = path.with_name(f".{path.name}.json"), path.with_name(f".{path.name}.part")
        try:
            self._profile.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(packed, "wb", _LEVEL) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            packed.replace(path)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
