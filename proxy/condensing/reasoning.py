"""Which reasoning the views of one request may have, by the rules of `strategies/core/reasoning.py`, and such a view.

A branch remembers what its reasoning is bound to; a view behind another head loses the reasoning up to it. What the
upstream says to that is a row of the ladder (`ladder/reasoning.py`).
"""

from __future__ import annotations

from dataclasses import replace

from proxy.condensing.turn import RequestContext
from strategies.core.condensation import Condensation, standing_condensations
from strategies.core.reasoning import BOUND, OWN, UNKNOWN, Bound
from strategies.core.transcript import Transcript, standing_patches
from strategies.core.view import View, fold


def fold_view(context: RequestContext, condensation: Condensation | None) -> View:
    """The view with a condensation, or with none."""
    overlays = (condensation.overlay,) if condensation else ()
    return fold(transcript_under(context, condensation), overlays, context.sized.overhead, context.server.counter)


def transcript_under(context: RequestContext, condensation: Condensation | None) -> Transcript:
    """The transcript for a view with a condensation, or with none."""
    transcript = context.history.shown
    if not transcript.is_signed:
        return transcript
    until = bound_under(context, condensation).until if binds(context) else None
    return transcript if until == transcript.bound_until else transcript.having(bound_until=until)


def binds(context: RequestContext) -> bool:
    """Whether reasoning is bound to the messages before it, and leaves a view in which these have changed."""
    if (rule := context.policy.profile.reasoning) is not None:
        return rule == BOUND
    body, dialect = context.request.body, context.server.counter.dialect
    may_bind = context.history.measured.transcript.is_signed or dialect.binds_reasoning
    return may_bind and not body.endpoint.keeps_reasoning(body.values)


def bound_under(context: RequestContext, condensation: Condensation | None) -> Bound:
    """What reasoning is bound to after a view with a condensation, or with none."""
    transcript, branch, records = context.history.measured.transcript, context.branch, context.recognised.condensations
    # Memory blocks and hidden rounds that earlier views of this transcript had, and that this one has not.
    hidden: list[int] = []
    if known := context.recognised.patches:
        shown = {patch.order for patch in transcript.patches}
        hidden = [patch.at for patch in standing_patches(known, transcript) if patch.order not in shown]

    def head_with(made: Condensation | None) -> str:
        """The name of the head of a view, also by what it should show and does not."""
        covered, head = (made.covered, made.head_in(transcript)) if made else (0, OWN)
        return head + "-" if max(hidden, default=0) > covered else head

    head, length = head_with(condensation), len(transcript.chain)
    if context.refuses_reasoning:
        return Bound(head, length)
    if branch is not None:
        kept_from = None
        if condensation is not None and condensation.is_opaque:
            # What was kept begins there if the opaque head was made of the branch's last view.
            made_of = next((each for each in records if each.id == condensation.parent), None)
            kept_from = condensation.covered if head_with(made_of) == branch.bound.head else None
        return branch.bound.behind(head, length, kept_from)
    # A new branch shares its messages with another one, which may have been answered behind such a record.
    stood = (replace(made, standing=made.standing or made.reverted) for made in records)
    is_new = not (hidden or standing_condensations(stood, transcript.digests))
    return Bound(OWN if is_new else UNKNOWN).behind(head, length)
