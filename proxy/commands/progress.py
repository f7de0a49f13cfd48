"""A bar on a terminal that shows how far a command is."""

from __future__ import annotations

import sys


class Progress:
    def __init__(self, steps: int) -> None:
        self._steps, self._done, self._shown = steps, 0, sys.stderr.isatty()

    def step(self, told: str) -> None:
        """Shows that one more step is done; the last one wipes the bar."""
        self._done += 1
        bar = "#" * (24 * self._done // self._steps)
        line = f"[{bar:<24}] {self._done:,}/{self._steps:,} {told}" if self._done < self._steps else ""
        if self._shown:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
