"""`condenser`, as its script runs it: `python -m bench.serving ARGUMENT …`.

Where `PROFILE` names a file, a profiler looks on from SIGUSR1 until the process ends; `profiled` reads what it wrote.
"""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import signal
import sys
from pathlib import Path

from proxy.cli import main

VARIABLE = "PROFILE"


def profiled(path: Path, lines: int = 30) -> str:
    """The functions that took most of the processor's time by themselves, and those that did with what they called."""
    text = io.StringIO()
    stats = pstats.Stats(str(path), stream=text).strip_dirs()
    stats.sort_stats("tottime").print_stats(lines)
    stats.sort_stats("cumtime").print_stats(lines)
    return text.getvalue()


def run() -> int:
    """What the command returns; the profile is written however it ends."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return main(sys.argv[1:])
    # The server passes on the signal that ended it, when it has: that must not be the end of the process yet.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    profile = cProfile.Profile()
    signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
    try:
        return main(sys.argv[1:])
    finally:
        profile.dump_stats(path)


if __name__ == "__main__":
    sys.exit(run())
