"""How much memory there is and what work takes, measured on this machine; control groups as the kernel shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pymllm.memory.cgroup import GroupMemory, group_memory
from pymllm.memory.device import available_bytes, is_out_of_memory, total_bytes

CPU = torch.device("cpu")
MIB = 1 << 20
NO_LIMIT = "9223372036854771712"

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@linux
def test_the_machines_memory() -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = total_bytes(CPU)
    assert 0 < total <= physical
    assert 0 < available_bytes(CPU) <= total


PEAKS = """
import torch
from pymllm.memory.device import peak_bytes

def work():
    for _ in range(3):
        torch.ones(64 << 20, dtype=torch.uint8)  # freed again each time

work()
print(peak_bytes(torch.device("cpu"), work), peak_bytes(torch.device("cpu"), lambda: None))
"""


@linux
def test_the_peak_of_work_is_what_it_holds_at_a_time() -> None:
    # In a fresh process: one that ran for long has freed memory at hand, which does not count as taken.
    found = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    peak, nothing = map(int, found.stdout.split())
    assert 60 * MIB <= peak <= 160 * MIB
    assert nothing < 16 * MIB


def test_running_out_of_memory_is_told_from_other_failures() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_version_2_the_tightest_of_the_groups_around(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/shop/server",
            f"{top}/memory.stat": "file 0",
            f"{top}/shop/memory.max": "1000",
            f"{top}/shop/memory.current": "900",
            f"{top}/shop/memory.stat": "anon 500\nactive_file 100\ninactive_file 200\nshmem 50",
            f"{top}/shop/server/memory.max": "800",
            f"{top}/shop/server/memory.current": "300",
            f"{top}/shop/server/memory.stat": "active_file 0\ninactive_file 50",
        },
    )
    # the server may use 800, of which 550 are free; but in the shop only 1000 - 900 + 300 are left
    assert group_memory(root) == GroupMemory(limit=800, free=400)


def test_version_2_inside_a_container(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    files = {f"{top}/memory.max": "700", f"{top}/memory.current": "650", f"{top}/memory.stat": "inactive_file 25"}
    for path in ("/", "/../../outside", "/docker/4711"):
        root = write(tmp_path, {"proc/self/cgroup": f"0::{path}", **files})
        assert group_memory(root) == GroupMemory(limit=700, free=75)


def test_version_1(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:hugetlb,memory:/docker/4711\n0::/",
        f"{top}/memory.limit_in_bytes": "600",
        f"{top}/memory.usage_in_bytes": "500",
        f"{top}/memory.stat": "active_file 1\ntotal_active_file 30\ntotal_inactive_file 40",
    }
    assert group_memory(write(tmp_path, files)) == GroupMemory(limit=600, free=170)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/"},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": "5",
         "sys/fs/cgroup/memory.stat": ""},
        {"proc/self/cgroup": "4:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
         "sys/fs/cgroup/memory/memory.usage_in_bytes": "5", "sys/fs/cgroup/memory/memory.stat": ""},
    ],
    ids=["no groups", "nothing mounted", "no limit in version 2", "no limit in version 1"],
)  # fmt: skip
def test_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert group_memory(write(tmp_path, files)) is None
