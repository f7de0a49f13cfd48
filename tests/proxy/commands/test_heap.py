"""All threads of `condenser serve` share one heap of glibc's allocator; a real process."""

from __future__ import annotations

import platform
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
