"""Recorded conversations, and the requests that a client must have made on the way through one."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.data import LONG, MISSING, SHORT

__all__ = ["LONG", "SHORT", "Conversation", "conversations"]


@dataclass(frozen=True)
class Conversation:
    """One line of a file."""

    id: str
    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    @property
    def has_tools(self) -> bool:
        return any(each["role"] == "tool" for each in self.messages)

    def requests(self) -> list[int]:
        """Lengths of the histories that were sent: each ends before a reply, the last with the conversation."""
        roles = [each["role"] for each in self.messages]
        before = [
            place
            for place in range(1, len(roles))
            if roles[place] == "assistant" and roles[place - 1] not in ("assistant", "system")
        ]
        return [*before, len(roles)] if roles[-1] != "assistant" else before


def conversations(path: Path) -> dict[str, Conversation]:
    """All of a file by id; skips the test, and says so, where the folder is missing."""
    if not path.exists():
        pytest.skip(MISSING)
    return _read(path)


@cache
def _read(path: Path) -> dict[str, Conversation]:
    return {each.id: each for each in _lines(path)}


def _lines(path: Path) -> Iterator[Conversation]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield Conversation(row["id"], row["kind"], row["messages"], row.get("tools") or [])
