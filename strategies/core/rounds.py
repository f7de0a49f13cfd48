"""Turns, rounds and legal cuts.

A *turn* is a user message and everything that follows up to the next one. A *round* is one assistant message and the
results that answer it; in protocols where a reply is several messages, it is all of them and their results. A *cut* is
an index where the list may be split: never between a call and one of its results, wherever they stand, nor inside a
reply. A result answers the newest call with its id, so ids may be reused; a result without an id answers the assistant
message before it. The result of a vendor's tool may come rounds after its call: rounds stay as they are, but no cut is
between them.

`structure` finds all of them, even in a list that a client has broken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

from strategies.core.messages import Role, ToolCall


class Rounded(Protocol):
    """What `structure` needs to know about an item. If its `role` is None, as for a replacement, it has no round."""

    @property
    def role(self) -> Role | None: ...
    @property
    def calls(self) -> tuple[ToolCall, ...]: ...
    @property
    def answers(self) -> tuple[str, ...]: ...
    @property
    def opens(self) -> tuple[str, ...]: ...
    @property
    def closes(self) -> tuple[str, ...]: ...
    @property
    def continues_reply(self) -> bool: ...


class Round(NamedTuple):
    start: int
    end: int


@dataclass(slots=True)
class Turn:
    """The items [start, end) of a turn. `user` is the index of its user message; None before the first one."""

    start: int
    end: int
    user: int | None
    rounds: list[Round] = field(default_factory=list)


class Structure(NamedTuple):
    """Turns in order, and for each index 0..n whether the list may be cut before it."""

    turns: list[Turn]
    cuts: list[bool]

    @property
    def rounds(self) -> list[Round]:
        return [span for turn in self.turns for span in turn.rounds]

    @property
    def newest_round(self) -> Round | None:
        """The last round, which only `shorten` may change."""
        return next((turn.rounds[-1] for turn in reversed(self.turns) if turn.rounds), None)


# Looked up once for each message of a list.
_USER, _ASSISTANT, _TOOL = Role.USER, Role.ASSISTANT, Role.TOOL


def structure(items: Sequence[Rounded]) -> Structure:
    roles = [item.role for item in items]
    # The assistant's items that continue the reply of the item before them.
    pairs = enumerate(pairwise(roles), 1)
    continued = {i for i, (before, role) in pairs if before is role is _ASSISTANT and items[i].continues_reply}
    return Structure(_turns(roles, continued), _cuts(items, roles, continued))


def _turns(roles: Sequence[Role | None], continued: Set[int]) -> list[Turn]:
    turns: list[Turn] = []
    for i, role in enumerate(roles):
        if role is _USER or (role is not None and not turns):
            if turns:
                turns[-1].end = i
            turns.append(Turn(i, i + 1, i if role is _USER else None))
        if role is _USER or role is None:
            continue
        rounds = turns[-1].rounds
        if rounds and (role is _TOOL or i in continued):
            rounds[-1] = Round(rounds[-1].start, i + 1)
        else:
            rounds.append(Round(i, i + 1))
    if turns:
        turns[-1].end = len(roles)
    return turns


def _cuts(items: Sequence[Rounded], roles: Sequence[Role | None], continued: Set[int]) -> list[bool]:
    """For each index 0..n, whether a cut there would separate no two items that belong together."""
    steps = [0] * (len(items) + 1)
    callers: dict[str, int] = {}
    last = -1
    for i, role in enumerate(roles):
        tied = [i - 1] if i in continued else []
        if role is _ASSISTANT:
            for call in items[i].calls:
                callers[call.id] = i
            last = i
        elif role is _TOOL:
            tied = [callers.get(answered, last) if answered else last for answered in items[i].answers or ("",)]
        tied += [callers[one] for one in items[i].closes if one in callers]
        callers.update(dict.fromkeys(items[i].opens, i))
        for start in tied:
            if start >= 0:
                steps[start + 1] += 1
                steps[i + 1] -= 1
    return [open_ties == 0 for open_ties in accumulate(steps)]


def answered_calls(items: Iterable[Rounded]) -> list[list[ToolCall | None]]:
    """For each item, the calls that it answers: the n-th result with an id answers the n-th call with that id."""
    waiting: dict[str, list[ToolCall]] = defaultdict(list)
    answered: list[list[ToolCall | None]] = []
    for item in items:
        for call in item.calls:
            waiting[call.id].append(call)
        ids = (item.answers or ("",)) if item.role is Role.TOOL else ()
        answered.append([waiting[call_id].pop(0) if waiting[call_id] else None for call_id in ids])
    return answered


def newest_round(items: Sequence[Rounded]) -> Round | None:
    """The last round, found from the end without a pass over the list."""
    end = next((i for i in range(len(items), 0, -1) if items[i - 1].role in (Role.ASSISTANT, Role.TOOL)), None)
    if end is None:
        return None
    start = end - 1
    while start > 0 and items[start].role is not Role.ASSISTANT and items[start - 1].role is not Role.USER:
        start -= 1
    while start > 0 and items[start].continues_reply and items[start - 1].role is items[start].role is Role.ASSISTANT:
        start -= 1
    return Round(start, end)
