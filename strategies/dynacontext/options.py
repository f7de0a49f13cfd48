"""The options of `dynacontext`, and the values that its modes stand for. docs/strategies.md describes each option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.core.options import Options, Value, option

AUTOMATIC = -1

_SET = ("min_growth", "tail", "on_drift", "empty_assistant", "include_tool_content")
_PRESETS: Mapping[str, Mapping[str, Value]] = {
    "chat": dict(zip(_SET, (AUTOMATIC, "keep", "carry", False, True), strict=True)),
    "openhands": dict(zip(_SET, (AUTOMATIC, "drop", "carry", False, True), strict=True)),
    "refer": dict(zip(_SET, (0, "drop", "rollback", True, False), strict=True)),
}


@dataclass(frozen=True, slots=True)
class DynaContextOptions(Options):
    """`mode` stands for values of other options; an explicit value wins over the mode's. Sizes are in tokens."""

    mode: str = option("chat", one_of="chat openhands refer")
    voting_k: int = option(5, 1, 25)
    early_turns: int = option(1, 0)
    min_growth: int = option(AUTOMATIC, AUTOMATIC)
    max_branches: int = option(5, 0)
    judge: str = option("after", one_of="after inline")
    ballot: str = option("single", one_of="single n")
    judge_max_tokens: int = option(1_000, 50)
    keep_first: int = option(1, 0)
    keep_last: int = option(0, 0)
    exclude_tail_max: int = option(2, 0)
    tail: str = option("keep", one_of="keep drop")
    on_drift: str = option("carry", one_of="carry rollback")
    summary_max_tokens: int = option(2_000, 100)
    summary_format: str = option("plain", one_of="plain sections")
    empty_assistant: bool = option(False)
    include_tool_content: bool = option(True)
    memory_cards: bool = option(True)

    @property
    def conflict(self) -> str:
        """A tail cannot be dropped while the model has yet to answer it."""
        if self.tail == "keep" or self.judge == "after":
            return ""
        return (
            "'tail=drop' (also by 'mode') needs 'judge=after': the tail of a vote that is held before forwarding is"
            " what the model must answer; add 'tail=keep' to use 'judge=inline'"
        )

    def preset(self, mode: str) -> Mapping[str, Value]:
        return _PRESETS.get(mode, {})
