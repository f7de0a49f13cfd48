"""The demo's measures, as pure functions of message lists and headers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

Messages = Sequence[Mapping[str, Any]]
_DURATION = re.compile(r"([\w-]+)\s*;\s*dur=([\d.]+)")
_OURS = ("session", "count", "condense")


class CacheUse(NamedTuple):
    """Tokens of all forwarded views, and how many of them were at the same place in the previous view."""

    hit: int
    forwarded: int

    @property
    def share(self) -> float:
        """The share of all tokens that a prefix cache hits; 0 if nothing was forwarded."""
        return self.hit / self.forwarded if self.forwarded else 0.0

    @property
    def missed(self) -> int:
        """Tokens that the upstream had to read anew."""
        return self.forwarded - self.hit


def common_prefix(before: Messages, after: Messages) -> int:
    """How many messages two lists have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))


def cache_use(views: Sequence[Messages], count: Callable[[Messages], int]) -> CacheUse:
    """What a cache of the previous view would have hit in each view; `count` returns the tokens of messages."""
    hit = sum(count(after[: common_prefix(before, after)]) for before, after in pairwise(views))
    return CacheUse(hit, sum(map(count, views)))


def has_evidence(messages: Messages, evidence: str) -> bool:
    """Whether the forwarded messages before the question, which is the last message, contain `evidence`."""
    return evidence in json.dumps(list(messages[:-1]), ensure_ascii=False)


def added_ms(server_timing: str) -> float | None:
    """The milliseconds that the proxy added before forwarding, by its `Server-Timing` header; None without one."""
    durations = {name: float(value) for name, value in _DURATION.findall(server_timing)}
    ours = [durations[name] for name in _OURS if name in durations]
    return sum(ours) if ours else None


def same_reply(recorded: Mapping[str, Any], received: Mapping[str, Any]) -> bool:
    """Whether a reply has the recorded text and calls."""
    return _essence(recorded) == _essence(received)


def _essence(message: Mapping[str, Any]) -> tuple[str, list[tuple[str, str, str]]]:
    calls = message.get("tool_calls") or []
    return (
        message.get("content") or "",
        [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls],
    )
