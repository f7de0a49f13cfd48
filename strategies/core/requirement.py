"""Requirements: when to condense and what that may cost, as one table that the driver reads.

The *floor* is the number of tokens that no condensation can remove from a view. Tools, framing and system messages, the
first user message, the question, pins, and the newest round always stay; only the results of the newest round may still
be cut. If these alone nearly fill the window, a summary would cost a call and make no room.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from strategies.core.budget import INSIDE_TURN, Budget, Cause
from strategies.core.messages import Message, Role
from strategies.core.replacement import frame_tokens
from strategies.core.rounds import newest_round
from strategies.core.summary import MIN_RECORD
from strategies.core.transcript import together
from strategies.core.view import View

_DOCUMENT = re.compile(rb'"type"\s*:\s*"(?:document|input_file|file|container_upload)"')


class Requirement(Enum):
    """Why a view should be condensed, weakest first."""

    PREPARE = "prepare"
    SOFT = "soft"
    HARD = "hard"
    FORCED = "forced"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class Rule:
    asks: bool  # whether a model may be asked: in the background for PREPARE, for all others while the client waits
    waits: bool  # whether the view must first have grown by a step since the last condensation
    least_shrink: float  # the share by which a result must shrink the view to be used
    least_room: int
    """How many requests of the session's mean size must fit under `trigger` after a result that misses its goal.

    If fewer fit, the result is not used. The rule holds only if no model was asked, so that nothing paid for is wasted.
    """
    ladder: bool  # whether the stages of the ladder follow. They need no model and always make room.


_AT_ONCE = Rule(asks=True, waits=False, least_shrink=0.0, least_room=0, ladder=True)
RULES = {
    Requirement.PREPARE: Rule(asks=True, waits=True, least_shrink=0.10, least_room=2, ladder=False),
    Requirement.SOFT: Rule(asks=False, waits=True, least_shrink=0.10, least_room=2, ladder=False),
    Requirement.HARD: _AT_ONCE,
    Requirement.FORCED: _AT_ONCE,
    Requirement.OVERFLOW: _AT_ONCE,
}


def requirement_for(
    tokens: int, budget: Budget, *, since: int | None, called: bool, forced: bool = False, due: bool = False
) -> Requirement | None:
    """The requirement of a view of `tokens`, if any; `since` is its size just after the last condensation.

    `called` means that the trigger asks for it (`is_called`), `due` that a judged record is ready or that a strategy's
    own trigger is reached; that does not wait for a step.
    """
    if forced:
        return Requirement.FORCED
    if budget.headroom(tokens) < budget.least_headroom:
        return Requirement.HARD
    if due or (called and may_be_raised(Requirement.SOFT, tokens, budget, since)):
        return Requirement.SOFT
    return None


def is_called(view: View, budget: Budget) -> bool:
    """Whether the trigger asks for a smaller view: its size does, or the next request would cross the price step."""
    tokens, step = view.tokens, budget.step_at
    if step is not None and tokens + last_growth(view) > step:
        return True
    if tokens < budget.trigger:
        return False
    # A turn is not cut by choice until the view is well above the mark: its user waits, and may speak soon.
    is_patient = budget.cause is Cause.MOST and tokens < budget.share_trigger and not view.ends_with_user
    return not is_patient or tokens >= INSIDE_TURN * budget.trigger


def is_by_choice(view: View, budget: Budget) -> bool:
    """Whether nothing but `most` or a price step asks for a smaller view, whichever mark is the trigger."""
    return view.tokens < budget.share_trigger or (view.tokens < budget.trigger and is_called(view, budget))


def last_growth(view: View) -> int:
    """The tokens of the larger one of the last two rounds, as the least that the next request is expected to add."""
    chain, sizes = view.transcript.chain, [0]
    while len(sizes) < 3 and (newest := newest_round(chain)) is not None:
        sizes.append(sum([message.tokens for message in chain[newest.start : newest.end]]))
        chain = chain[: newest.start]
    return max(sizes)


def spared(view: View) -> View:
    """The view in which nobody's words may be condensed, for where only `most` or a price step asks for a smaller one.

    User messages, and messages with pictures or documents, then stay whole beside the pins: what is saved is money, and
    the view would have fitted.
    """
    chain = view.transcript.chain
    whole = {item.source for item in view.items if item.intact and _is_spared(item.message)}
    pinned = view.transcript.pinned | together(whole, chain)
    return replace(view, transcript=view.transcript.having(pinned=pinned))


def _is_spared(message: Message) -> bool:
    return message.role is Role.USER or bool(message.pictures.number) or _DOCUMENT.search(message.data) is not None


def may_be_raised(requirement: Requirement, tokens: int, budget: Budget, since: int | None) -> bool:
    """Whether the view has grown enough since the last condensation for this requirement to be raised.

    PREPARE waits for a step, but at most for half of the room that was left just after the last condensation: otherwise
    no turn might remain in which to prepare.
    """
    if since is None or not RULES[requirement].waits:
        return True
    if requirement is not Requirement.PREPARE:
        return has_grown(tokens, budget, since)
    room = budget.headroom(since) - budget.least_headroom
    return tokens - since >= min(budget.step, room // 2)


def has_grown(tokens: int, budget: Budget, since: int | None) -> bool:
    """Whether the view has grown by a step since the last condensation, which makes another one worth a cache miss."""
    return since is None or tokens - since >= budget.step


MIN_RESULT = 180  # tokens of a result, with its frame, that was cut as far as allowed


def floor(view: View, budget: Budget) -> int:
    """The tokens of a view that always stay, not counting a record."""
    items, limit = view.items, view.last_cut
    tokens = view.fixed_tokens
    for item in items[limit:]:
        tokens += min(item.message.tokens, MIN_RESULT) if item.role is Role.TOOL else item.message.tokens
    if view.task is not None and view.task < limit:
        task = items[view.task].message.tokens
        tokens += task if view.transcript.keeps_task_whole else min(task, budget.task_cap)
    return tokens + sum(items[i].message.tokens for i in view.stays if i < limit and i != view.task)


def condensable(view: View) -> int:
    """The tokens of a view that some strategy may condense; an earlier replacement does not count."""
    fixed = {view.task, view.replacement, *view.stays}
    return sum(item.message.tokens for i, item in enumerate(view.items[: view.last_cut]) if i not in fixed)


def can_help(requirement: Requirement, view: View, budget: Budget) -> bool:
    """Whether a record of the least size would shrink the view as far as the requirement needs.

    With HARD and OVERFLOW, the view must then fit; with PREPARE, shrink by the rule's share. FORCED is always tried.
    """
    least = floor(view, budget) + frame_tokens(view.counter) + MIN_RECORD
    if requirement in (Requirement.HARD, Requirement.OVERFLOW):
        return least <= budget.fits
    if requirement is Requirement.PREPARE:
        return view.tokens - least >= RULES[requirement].least_shrink * view.tokens
    return True
