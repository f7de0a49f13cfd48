"""How many tokens there are, and for what.

    window    the model's context length
    reserve   held back for the reply
    usable    window − reserve (or the model's own input limit, if that is less)
    marks     shares of usable: prepare, trigger, target, step

All numbers of a `Budget` are tokens as the tokenizer at hand counts them. Where the upstream's own figures are
known to run higher or lower, the caller scales the budget (`Budget.scaled`), so that strategies need not know of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from strategies.core.ledger import LEDGER, LedgerCaps

RESERVE_AT_MOST = 4_096
TARGET_UNDER_TRIGGER = 0.8
LEAST_HEADROOM = 512
_STEPS = 8  # of a scale, to one
LEAST_TRIGGER = 0.5
"""The least share of usable at which a strategy's own marks may condense."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Shares of usable; `target` is kept under 0.8 × `trigger`, `prepare` at or under `trigger`."""

    prepare: float = 0.70
    trigger: float = 0.85
    target: float = 0.50
    step: float = 0.15

    def clamped(self) -> Marks:
        """The marks that are used: options that contradict each other give way to `trigger`."""
        trigger = min(max(self.trigger, 0.05), 1.0)
        return Marks(
            prepare=min(max(self.prepare, 0.0), trigger),
            trigger=trigger,
            target=min(max(self.target, 0.01), TARGET_UNDER_TRIGGER * trigger),
            step=min(max(self.step, 0.0), 1.0),
        )


class Scale(NamedTuple):
    """From our own count of a view to the upstream's: `offset` + `slope` × own.

    The offset, in tokens of the upstream, is what it adds by itself, such as a hidden prompt.
    """

    offset: int = 0
    slope: float = 1.0

    def upstream(self, own: int) -> int:
        """What the upstream counts for a view of `own` tokens."""
        return max(self.offset + round(self.slope * own), 0)

    def own(self, upstream: int) -> int:
        """The most tokens of our own that the upstream counts as `upstream`, 0 where not even an empty view fits."""
        return max(int((upstream - self.offset) / self.slope), 0)

    def share(self, upstream: int) -> int:
        """A number of the upstream's tokens as our own, where no offset is in it."""
        return int(upstream / self.slope)


UNSCALED = Scale()
"""The scale of an upstream that counts as we do."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens for one request. `goal` is what a plan aims at; the driver sets it by the requirement.

    `prompt_window` is the window of the model that is asked for summaries; None where that is the request's own.
    `ledger` bounds what replacements carry word for word.
    Of a budget that was scaled, `nominal` is the one in tokens of the upstream, and `scale` leads there.
    """

    window: int
    reserve: int
    marks: Marks = Marks()
    max_input: int | None = None
    goal: int = 0
    prompt_window: int | None = None
    ledger: LedgerCaps = LEDGER
    nominal: Budget | None = None
    scale: Scale = UNSCALED

    @classmethod
    def of(
        cls,
        window: int,
        *,
        asked: int | None = None,
        reserve: int | None = None,
        marks: Marks | None = None,
        max_input: int | None = None,
    ) -> Budget:
        """A budget for `window`; `asked` is the reply length in the request, `reserve` the setting."""
        used = (marks or Marks()).clamped()
        budget = cls(window, reserve_for(window, asked, reserve), used, max_input)
        return replace(budget, goal=budget.target)

    @property
    def usable(self) -> int:
        """Tokens that the view may have, tools included."""
        return _usable(self.window, self.reserve, self.max_input)

    @property
    def prepare(self) -> int:
        """Past this a summary is prepared in the background."""
        return int(self.usable * self.marks.prepare)

    @property
    def trigger(self) -> int:
        """From here on the view is condensed when that costs no waiting."""
        return int(self.usable * self.marks.trigger)

    @property
    def target(self) -> int:
        """What a condensation brings the view down to."""
        return int(self.usable * self.marks.target)

    @property
    def step(self) -> int:
        """Tokens by which a view must have grown before it is condensed again."""
        return int(self.usable * self.marks.step)

    @property
    def least_headroom(self) -> int:
        """Headroom under which the view must be condensed now."""
        return min(LEAST_HEADROOM, self.window // 16)

    @property
    def replacement_cap(self) -> int:
        """The most that frame, summary and ledger may have together."""
        return self.window // 10

    @property
    def task_cap(self) -> int:
        """The most of the first user message that stays verbatim."""
        return min(2_000, self.window // 8)

    def headroom(self, tokens: int) -> int:
        """What is left when the view has `tokens`; negative where it does not fit."""
        return self.usable - tokens

    @property
    def unscaled(self) -> Budget:
        """The budget in tokens of the upstream."""
        return self.nominal or self

    @property
    def coarse(self) -> Budget:
        """The budget by a scale in steps of an eighth, and no less than one.

        What is known of the scale moves with each reply. A view that nobody remembers is made by this one, so that it
        comes out the same again.
        """
        ratio = self.unscaled.usable / max(self.usable, 1)
        return self.unscaled.scaled(Scale(0, max(round(_STEPS * ratio) / _STEPS, 1.0)))

    @property
    def made_for(self) -> int:
        """The window in tokens of the upstream: it stays the same while what is known of the scale moves."""
        return self.unscaled.window

    def upstream_headroom(self, tokens: int) -> int:
        """What is left, in tokens of the upstream, when the view has `tokens` of our own."""
        return self.unscaled.headroom(self.scale.upstream(tokens))

    def marked(self, marks: Marks) -> Budget:
        """The same budget with other marks, aiming at their target."""
        other = replace(self, marks=marks.clamped())
        return replace(other, goal=other.target)

    def aiming(self, goal: int) -> Budget:
        """The same budget with another goal."""
        return replace(self, goal=goal)

    def scaled(self, scale: Scale) -> Budget:
        """This budget, which is in tokens of the upstream, in our own; `goal` is its target."""
        if scale == UNSCALED:
            return self
        most = None if self.max_input is None else scale.own(self.max_input)
        window, reserve = scale.own(self.window), scale.share(self.reserve)
        goal = int(_usable(window, reserve, most) * self.marks.target)
        return Budget(window, reserve, self.marks, most, goal, self.prompt_window, self.ledger, self, scale)


def _usable(window: int, reserve: int, most: int | None) -> int:
    rest = window - reserve
    return max(rest if most is None else min(rest, most), 0)


def reserve_for(window: int, asked: int | None, setting: int | None) -> int:
    """Tokens held back for the reply, at most half of the window."""
    if asked is not None and asked > 0:
        return min(asked, window // 2)
    if setting is not None:
        return min(max(setting, 0), window // 2)
    return min(window // 8, RESERVE_AT_MOST)
