"""The budget: how many tokens a request may have, and for what.

    window    the model's context length
    reserve   held back for the reply
    usable    window − reserve (or the model's own input limit, if that is less)
    marks     shares of usable: prepare, trigger, target, step

A `Budget` is in tokens of one count. The upstream's own comes from the settings and from what is known of its window.
The driver converts it once to our tokenizer's count (`Budget.scaled`), so that strategies need not know about the
difference; only `upstream_window` stays as it was, because it does not change with the measured scale.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

from strategies.core.ledger import LEDGER, LedgerCaps

MAX_RESERVE = 4_096
TARGET_UNDER_TRIGGER = 0.8
MIN_HEADROOM = 512
MAX_SMALL_REPLACEMENT = 2_000  # of a replacement that may have more than a tenth of the window
MAX_SMALL_SUMMARY = 400  # the same where a model writes the record: in a tenth of 2,000 its answers are cut short
USEFUL_CAP = 200  # with less, the user's rules leave no room for a record beside them
MIN_TRIGGER = 0.5  # the minimum of a strategy's own `trigger`, as a share of usable


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks as shares of usable. `clamped` keeps `target` under 0.8 × `trigger` and `prepare` at most `trigger`."""

    prepare: float = 0.70
    trigger: float = 0.85
    target: float = 0.50
    step: float = 0.15

    def clamped(self) -> Marks:
        trigger = min(max(self.trigger, 0.001), 1.0)
        return Marks(
            prepare=min(max(self.prepare, 0.0), trigger),
            trigger=trigger,
            target=min(max(self.target, 0.0005), TARGET_UNDER_TRIGGER * trigger),
            step=min(max(self.step, 0.0), 1.0),
        )


class Scale(NamedTuple):
    """Converts our count of a view to the upstream's: `offset` + `slope` × own.

    The offset, in the upstream's tokens, is what the upstream adds by itself, such as a hidden prompt.
    """

    offset: int = 0
    slope: float = 1.0

    def upstream(self, own: int) -> int:
        return max(self.offset + round(self.slope * own), 0)

    def own(self, upstream: int) -> int:
        """How many of our tokens the upstream counts as at most `upstream`; 0 if not even an empty view fits."""
        return max(int((upstream - self.offset) / self.slope), 0)

    def share(self, upstream: int) -> int:
        """Converts the upstream's tokens of a part of a view to our own, without the offset."""
        return int(upstream / self.slope)


UNSCALED = Scale()  # the scale of an upstream that counts tokens as we do


@dataclass(frozen=True, slots=True)
class Budget:
    window: int
    reserve: int
    marks: Marks = Marks()
    max_input: int | None = None  # the model's own limit on the input, if it has one
    goal: int = 0  # the size of the view that a plan aims at. The driver sets it according to the requirement.
    prompt_window: int | None = None
    """The window of the model that is asked for summaries; None if that is the request's own model."""
    ledger: LedgerCaps = LEDGER
    stated_window: int | None = None  # for a budget in tokens of our own count, the window in tokens of the upstream

    @classmethod
    def of(
        cls,
        window: int,
        *,
        reply_length: int | None = None,
        reserve: int | None = None,
        marks: Marks | None = None,
        max_input: int | None = None,
    ) -> Budget:
        """A budget for `window`. `reply_length` is from the request, `reserve` from the settings."""
        used = (marks or Marks()).clamped()
        budget = cls(window, reserve_for(window, reply_length, reserve), used, max_input)
        return replace(budget, goal=budget.target)

    @property
    def usable(self) -> int:
        rest = self.window - self.reserve
        return max(rest if self.max_input is None else min(rest, self.max_input), 0)

    @property
    def prepare(self) -> int:
        return int(self.usable * self.marks.prepare)

    @property
    def trigger(self) -> int:
        return int(self.usable * self.marks.trigger)

    @property
    def target(self) -> int:
        return int(self.usable * self.marks.target)

    @property
    def step(self) -> int:
        return int(self.usable * self.marks.step)

    @property
    def least_headroom(self) -> int:
        """The headroom below which the view must be condensed at once."""
        return min(MIN_HEADROOM, self.window // 16)

    @property
    def replacement_cap(self) -> int:
        """The maximum number of tokens of a replacement, including its frame, record and ledger.

        A tenth of a small window has no room for what its user has said.
        """
        return max(self.window // 10, min(self.window // 4, MAX_SMALL_REPLACEMENT))

    @property
    def summary_cap(self) -> int:
        """The same if a model writes its record: a longer one would be a longer answer, and more calls."""
        useful = min(self.window // 4, USEFUL_CAP)
        return max(self.window // 10, min(self.window // 6, MAX_SMALL_SUMMARY), useful)

    @property
    def task_cap(self) -> int:
        """The tokens of the first user message that stay in every view."""
        return min(2_000, self.window // 8)

    @property
    def task_ceiling(self) -> int:
        """The maximum size of a condensed view that shows the first user message whole: just under `trigger`."""
        return self.goal + max(self.trigger - self.target - 1, 0)

    def headroom(self, tokens: int) -> int:
        """The headroom of a view of `tokens`; negative if the view does not fit."""
        return self.usable - tokens

    @property
    def upstream_window(self) -> int:
        """The window in tokens of the upstream."""
        return self.stated_window or self.window

    def with_marks(self, marks: Marks) -> Budget:
        """The same budget with other marks, and with their target as its goal."""
        other = replace(self, marks=marks.clamped())
        return replace(other, goal=other.target)

    def triggered_at(self, tokens: int) -> Budget:
        """This budget with its trigger at so many tokens at most, and its other marks in proportion."""
        if tokens >= self.trigger:
            return self
        share = max(tokens, 1) / self.trigger
        return self.with_marks(Marks(*[mark * share for mark in astuple(self.marks)]))

    def bounded(self, size: int) -> Budget:
        """This budget with a usable part of at most `size`, and all else in proportion to that."""
        if self.usable <= size:
            return self
        reserve = min(self.reserve, size)
        other = replace(self, window=size + reserve, reserve=reserve)
        return other.with_goal(other.target)

    def with_goal(self, goal: int) -> Budget:
        return replace(self, goal=goal)

    def scaled(self, scale: Scale) -> Budget:
        """This budget, which is in tokens of the upstream, converted to our own; `goal` becomes its target."""
        if scale == UNSCALED:
            return self
        most = None if self.max_input is None else scale.own(self.max_input)
        window, reserve = scale.own(self.window), scale.share(self.reserve)
        scaled = Budget(window, reserve, self.marks, most, 0, self.prompt_window, self.ledger, self.window)
        return scaled.with_goal(scaled.target)


def reserve_for(window: int, reply_length: int | None, setting: int | None) -> int:
    """Tokens held back for the reply, at most half of the window."""
    if reply_length is not None and reply_length > 0:
        return min(reply_length, window // 2)
    if setting is not None:
        return min(max(setting, 0), window // 2)
    return min(window // 8, MAX_RESERVE)
