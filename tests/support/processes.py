"""How tests end the processes that they start."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import AnyStr

from tests.support.signals import BOUND


def children(pid: int) -> set[int]:
    """The processes that a process has started and that it has not waited for."""
    try:
        return {*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())}
    except OSError:
        return set()


def end(process: subprocess.Popen[AnyStr], seconds: float = 2 * BOUND) -> None:
    """Ends a process as an operator does. One that does not end in time is killed with its children.

    `TimeoutExpired` is then raised.

    A test must not wait for a process without a bound, as the end of `with Popen(...)` does.
    """
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        for pid in (*children(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
