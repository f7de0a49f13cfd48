"""The budget: how many tokens a request may have, and for what.

    window    the model's context length
    reserve   held back for the reply
    usable    window − reserve (or the model's own input limit, if that is less)
    marks     shares of usable: prepare, trigger, target, step

In a window of a million tokens a share of it is a large prompt. So `most` tokens, or the size above which the whole
prompt costs more (the price step), may be the trigger instead (`Budget.at_most`). All shares of the window are then
shares of trigger / 0.85, and only what fits is judged by the window itself (`Budget.fits`).

A `Budget` is in tokens of one count. The upstream's own comes from the settings and from what is known of its window.
The driver converts it once to our tokenizer's count (`Budget.scaled`), so that strategies need not know about the
difference; only `upstream_window` stays as it was, because it does not change with the measured scale.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from enum import Enum
from math import ceil
from typing import NamedTuple

from strategies.core.ledger import LEDGER, LedgerCaps

MAX_RESERVE = 4_096
TARGET_UNDER_TRIGGER = 0.8
MIN_HEADROOM = 512
MAX_SMALL_REPLACEMENT = 2_000  # of a replacement that may have more than a tenth of the window
MAX_SMALL_SUMMARY = 400  # the same where a model writes the record: in a tenth of 2,000 its answers are cut short
USEFUL_CAP = 200  # with less, the user's rules leave no room for a record beside them
UNLIMITED = 1 << 53  # more tokens than any prompt has: what fits into a window that is not known
INSIDE_TURN = 9 / 8  # how far over `most` a view may grow inside a turn, as a share of it
MIN_TRIGGER = 0.5  # the minimum of a strategy's own `trigger`, as a share of usable


class Cause(Enum):
    """Why the trigger is where it is."""

    SHARE = "share"  # the mark of the window
    MOST = "most"  # `marks.most`
    STEP = "step"  # the price step


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
    window: int  # what shares of the window are shares of
    reserve: int
    marks: Marks = Marks()
    max_input: int | None = None  # the model's own limit on the input, if it has one
    goal: int = 0  # the size of the view that a plan aims at. The driver sets it according to the requirement.
    prompt_window: int | None = None
    """The window of the model that is asked for summaries; None if that is the request's own model."""
    ledger: LedgerCaps = LEDGER
    stated_window: int | None = None  # for a budget in tokens of our own count, the window in tokens of the upstream
    limit: int | None = None
    """What fits into the window itself, where `window` is only what shares are taken of; None if both are the same."""
    share_trigger: int = 0
    """What the trigger would be by the window itself, below which a view is condensed by choice; 0 if it is that."""
    step_at: int | None = None  # the size above which the whole prompt costs more
    cause: Cause = Cause.SHARE

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
        if self.limit is not None:
            return self.window
        rest = self.window - self.reserve
        return max(rest if self.max_input is None else min(rest, self.max_input), 0)

    @property
    def fits(self) -> int:
        """The tokens of the largest prompt that the server takes."""
        return self.usable if self.limit is None else self.limit

    @property
    def full_window(self) -> int:
        """The window itself: what fits, and the reserve."""
        return self.window if self.limit is None else self.limit + self.reserve

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
        return min(MIN_HEADROOM, (self.limit or self.window) // 16)

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
        return (self.usable if self.limit is None else self.limit) - tokens

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
        lower = self.with_marks(Marks(*[mark * share for mark in astuple(self.marks)]))
        return replace(lower, cause=Cause.SHARE, share_trigger=0)

    def at_most(self, most: int, step: int | None) -> Budget:
        """This budget with its trigger at `most` tokens, or at the price step, if that is less; 0 and None are none.

        Its other marks follow in proportion, and so do all shares of the window.
        """
        causes = [(self.trigger, Cause.SHARE), (most or UNLIMITED, Cause.MOST), (step or UNLIMITED, Cause.STEP)]
        trigger, cause = min(causes, key=lambda each: each[0])
        if cause is Cause.SHARE:
            return replace(self, step_at=step)
        share = Marks().trigger / self.marks.trigger
        smaller = replace(
            self,
            window=ceil(trigger / Marks().trigger),
            limit=self.fits,
            share_trigger=self.trigger,
            step_at=step,
            cause=cause,
        )
        return smaller.with_marks(Marks(*[mark * share for mark in astuple(self.marks)]))

    def bounded(self, size: int) -> Budget:
        """This budget with a usable part of at most `size`, and all else in proportion to that."""
        if self.usable <= size:
            return self
        if self.limit is not None:
            other = replace(self, window=size, limit=min(self.limit, size))
            return other.with_goal(other.target)
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
        scaled = replace(
            self,
            window=scale.own(self.window),
            reserve=scale.share(self.reserve),
            max_input=most,
            stated_window=self.window,
            limit=self.limit if self.limit in (None, UNLIMITED) else scale.own(self.limit),
            share_trigger=scale.own(self.share_trigger),
            step_at=self.step_at and scale.own(self.step_at),
        )
        return scaled.with_goal(scaled.target)


def reserve_for(window: int, reply_length: int | None, setting: int | None) -> int:
    """Tokens held back for the reply, at most half of the window."""
    if reply_length is not None and reply_length > 0:
        return min(reply_length, window // 2)
    if setting is not None:
        return min(max(setting, 0), window // 2)
    return min(window // 8, MAX_RESERVE)
