"""The process: what it has freed goes back to the system."""

import sys
from pathlib import Path

import pytest

from proxy.http.server import give_back_memory

MEGABYTES = 80


def resident() -> int:
    """Megabytes of the process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 // 1024**2


@pytest.mark.skipif(sys.platform != "linux", reason="the heap of glibc is meant")
async def test_holes_between_what_is_kept_are_given_back() -> None:
    blocks = [bytes(4_000) for _ in range(MEGABYTES * 256)]
    kept = blocks[::20]
    del blocks
    before = resident()
    await give_back_memory()
    assert before - resident() > MEGABYTES // 2
    assert len(kept) > 1_000
