"""The errors of the pure core.

    StrategyError                   a stage of a pipeline made no plan; `reason` says why
     ├── Declined                   a stage decided to change nothing
     │    └── NothingToDo           the view holds nothing that the stage could change: no failure
     │         └── NothingToSummarize   no history that could be condensed (half-window, fallback level 3)
     ├── AnswerRefused              a model's answer may not stand for history
     ├── InvalidPlan                a plan would add a violation to the message list
     └── OptionError                an option of a strategy is unknown or out of its range

The driver catches `StrategyError`; every other exception is a defect. A reason is a short kebab-case word
that a client may see in a header.
"""

from __future__ import annotations

from typing import Any


class StrategyError(Exception):
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.metadata: dict[str, Any] = {}  # the stage's telemetry on its failed run


class Declined(StrategyError):
    """The strategy decided not to change the view."""


class NothingToDo(Declined):
    """The view holds nothing that the strategy could change. A pipeline does not count this as a failure."""


class NothingToSummarize(NothingToDo):
    def __init__(self, detail: str = "") -> None:
        super().__init__("nothing-to-summarize", detail)


class AnswerRefused(StrategyError):
    """A model failed, or its text may not stand for history; `tokens` is the cost of the `calls` made so far."""

    def __init__(self, reason: str, detail: str = "", tokens: int = 0, calls: int = 0) -> None:
        super().__init__(reason, detail)
        self.tokens = tokens
        self.calls = calls


class InvalidPlan(StrategyError):
    def __init__(self, detail: str) -> None:
        super().__init__("invalid-plan", detail)
        self.metadata = {"invalidPlan": detail}


class OptionError(StrategyError):
    """An option's name or value is wrong; `detail` says what would be right."""

    def __init__(self, detail: str) -> None:
        super().__init__("bad-option", detail)
