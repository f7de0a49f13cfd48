"""The file of what a long command has measured, from which the next run goes on."""

from __future__ import annotations

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
