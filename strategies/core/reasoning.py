"""Reasoning: what a model thought, which clients send back with their messages, and when it may not be sent on.

Some servers sign reasoning and bind it to all that stood before it: behind another list they refuse it. Others want the
reasoning of every message with calls back, whatever stands before it. The rest do not care. So each server has a rule:

    BOUND      reasoning leaves a view whose beginning is another than the one that it was thought behind
    REQUIRED   reasoning never leaves a view
    none       signed reasoning is bound, and all other reasoning is kept

The settings give the rule (`upstream.profile.reasoning`), or a refusal that names it teaches it. A
dialect knows the signed parts (`Reading.is_signed`, `Dialect.unbound`).

A view begins with a *head*: the pieces of a condensation, or, if nothing is condensed, the client's own messages. A
branch remembers the head of its last view and how long the chain was when that head was first sent (`Bound`). Reasoning
from there on was thought behind this head, and stays. Earlier reasoning was thought behind another head, and leaves. So
a condensation costs the reasoning up to it, once; and so does each view without the head that stood before, because of
a larger window, of `off`, or of a condensation that was reverted. An opaque head, which is the server's own, costs
nothing of what was kept: the server knows what it stands for.

A branch may not know its last head: the session was deleted, the store is down, or a reply came in an outage. Then the
upstream refuses, and the request is sent once more without any reasoning that may be bound. The branch remembers that
as it remembers a new head.
"""

from __future__ import annotations

from typing import NamedTuple

BOUND, REQUIRED = "bound", "required"

OWN = ""  # the head of a view that begins as the client's own list
UNKNOWN = "?"  # a head that no view has: whatever the branch thought, it may have thought it behind another one


class Bound(NamedTuple):
    """What the reasoning of a branch is bound to."""

    head: str = OWN  # names the head of its last view
    until: int = 0
    """The length of the chain when that head was first sent. Reasoning before that is bound to another head."""

    def behind(self, head: str, length: int, kept_from: int | None = None) -> Bound:
        """The same after a view of `length` chain messages behind a head; the view keeps reasoning from `until` on.

        `kept_from` is given if that head is opaque and was made of the last view: what it kept begins at this index.
        """
        if head == self.head:
            return Bound(head, min(self.until, length))
        return Bound(head, length if kept_from is None else min(max(self.until, kept_from), length))
