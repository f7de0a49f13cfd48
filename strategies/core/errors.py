"""What can go wrong in the pure core.

    StrategyError
     ├── NothingToSummarize   no history that could be condensed (half-window, fallback level 3)
     ├── Declined             a stage has looked and does nothing, with its reason
     ├── AnswerRefused        a model's answer may not stand for history, with its reason
     ├── InvalidPlan          a plan that would add a violation to the message list
     └── OptionError          an option of a strategy is unknown or out of its range

The driver catches `StrategyError`; every other exception is a defect. A reason is a short kebab-case word
that a client may see in a header.
"""

from __future__ import annotations


class StrategyError(Exception):
    """A stage of a pipeline did not lead to a plan; `reason` says why in one kebab-case word."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Declined(StrategyError):
    """The strategy sees nothing that it should do."""


class NothingToSummarize(StrategyError):
    """There is no round that could be condensed at all."""

    def __init__(self, detail: str = "") -> None:
        super().__init__("nothing-to-summarize", detail)


class AnswerRefused(StrategyError):
    """A model failed, or what it wrote may not stand for history; `tokens` of the `calls` up to then."""

    def __init__(self, reason: str, detail: str = "", tokens: int = 0, calls: int = 0) -> None:
        super().__init__(reason, detail)
        self.tokens = tokens
        self.calls = calls


class InvalidPlan(StrategyError):
    """The view that a plan leads to breaks a rule that the transcript kept."""

    def __init__(self, detail: str) -> None:
        super().__init__("invalid-plan", detail)


class OptionError(StrategyError):
    """An option's name or value is wrong; `detail` says what would be right."""

    def __init__(self, detail: str) -> None:
        super().__init__("bad-option", detail)
