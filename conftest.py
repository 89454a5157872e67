"""For all tests of the repository: what needs a GPU is skipped, with its reason, where there is none."""

from __future__ import annotations

import gc
import signal

import pytest


def pytest_configure() -> None:
    # What a shell starts in the background ignores SIGINT, and so would every process that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    # The modules and the tests stay until the end: collections, of which some tests ask for many, need not visit them.
    gc.collect()
    gc.freeze()
