"""Runs of features, and that what a media processor needs of the contract brings no torch along."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pymllm.interfaces import CacheKey, MediaRun

RUN = MediaRun(media=2, start=10, length=6, first=4)


@pytest.mark.parametrize(
    "start, end, expected",
    [
        (0, 100, RUN),
        (0, 12, MediaRun(2, 10, 2, 4)),
        (12, 14, MediaRun(2, 12, 2, 6)),
        (15, 99, MediaRun(2, 15, 1, 9)),
        (0, 10, None),
        (16, 20, None),
        (12, 12, None),
    ],
)
def test_a_chunk_has_its_part_of_a_run(start: int, end: int, expected: MediaRun | None) -> None:
    assert RUN.within(start, end) == expected


def test_parts_of_one_video_are_no_substitute_for_one_another() -> None:
    """Runs of the same length at the same place in a page, with the same medium's digest."""
    first, second = MediaRun(0, 0, 4, 0), MediaRun(0, 0, 4, 4)
    digest = b"d" * 32
    keys = [CacheKey([7] * 4, (run.span(digest),)).pages(4) for run in (first, second, first)]
    assert keys[0] == keys[2] != keys[1]


def test_the_contract_of_processors_needs_no_torch() -> None:
    code = "import sys; from pymllm.interfaces import MediaProcessor, CachePolicy; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_name_of_the_contracts_is_there() -> None:
    import pymllm.interfaces

    for name in pymllm.interfaces.__all__:
        assert getattr(pymllm.interfaces, name) is not None
    with pytest.raises(AttributeError, match="Nonsense"):
        pymllm.interfaces.Nonsense  # noqa: B018
