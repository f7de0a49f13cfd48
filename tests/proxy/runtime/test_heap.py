"""What `condenser serve` asks of glibc: one heap for all threads, and large blocks apart. Real processes."""

from __future__ import annotations

import platform
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.replicas import await_answer, replica
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's"
)
THREAD_HEAP = 64 * 1024 * 1024
"""What glibc reserves, at a multiple of that, for a heap of a thread: first what is in use, then the rest."""
HOLES = """
from proxy.runtime.heap import LARGE, bound_heap

def resident():
    status = open("/proc/self/status").read()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024

bound_heap()
bytearray(2 * LARGE)
kept, before = [], resident()
blocks = []
for _ in range(100):
    blocks.append(b"." * 2 * LARGE)
    kept.append(b"." * 1_000)
assert resident() - before > 100 * LARGE
del blocks
print(resident() - before < 10 * LARGE)
"""
"""Frees large blocks between which small ones are kept, and says whether the memory was given back."""


def thread_heaps(pid: int) -> int:
    """How many heaps of threads a process has."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return sum(
        (used[1], rest[1]) == ("rw-p", "---p")
        and int(used[0].split("-")[0], 16) % THREAD_HEAP == int(rest[0].split("-")[1], 16) % THREAD_HEAP == 0
        for used, rest in pairwise(lines)
    )


def test_threads_share_one_heap(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with replica(upstream.base_url, f"sqlite:///{tmp_path}/s.db", "half-window", 4_096) as (url, process):
        await_answer(url, process)
        assert thread_heaps(process.pid) == 0


def test_large_blocks_leave_no_holes_behind() -> None:
    said = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert said.stdout == "True\n"
