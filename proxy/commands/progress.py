"""How far a long command is: a bar on a terminal, and the file of what it has done, from which it goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxy.errors import CommandFailed
from proxy.values import json_or_none, word_at


def results_in(path: Path) -> dict[str, Mapping[str, Any]]:
    """The lines of a file of results by their key; raises `CommandFailed` if no line can be added, before any is paid.

    A last line that was not written to its end is closed.
    """
    try:
        with path.open("a+", encoding="utf-8") as file:
            file.seek(0)
            text = file.read()
            file.write("" if text.endswith("\n") or not text else "\n")
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path} cannot be used for results: {error}") from None
    return {line["key"]: line for line in map(json_or_none, text.splitlines()) if word_at(line, "key")}


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
