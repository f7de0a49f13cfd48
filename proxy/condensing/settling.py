"""What a decision changes in its session, known before its reply. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.condensing.case import Case
from proxy.condensing.decision import Decision
from proxy.reasons import Action, Reason
from proxy.sessions.append import Append
from proxy.sessions.keeping import SessionUpdate, is_small


def update_for(decision: Decision, case: Case) -> SessionUpdate:
    """The update of the session by a decision, before anything is known of the reply."""
    return SessionUpdate(
        case.history,
        dict(case.policy.session_settings),
        str(case.policy.pipeline),
        decision.tokens_before,
        decision.forwarded_tokens,
        decision.own_tokens,
        _last_applied(decision, case),
        block=decision.memory_block,
        has_tools=case.has_tools,
        covered=decision.view.covered,
        rewriting_refused=_is_refused(decision),
    )


def _last_applied(decision: Decision, case: Case) -> str:
    """The id of the condensation that the branch applied last, "" for none.

    A request under `observe:`, or one that was `off`, leaves it as it was.
    """
    pipeline = case.policy.pipeline
    if decision.applied is None and (pipeline.is_off or pipeline.observe):
        return case.recognised.last_applied(case.history) or ""
    return decision.applied.id if decision.applied else ""


def with_appended(update: SessionUpdate, append: Append, reply: Mapping[str, Any]) -> SessionUpdate:
    """The update of append mode, which stores the request's messages and the reply."""
    tip, block = append.block(reply)
    return update._replace(tip=tip, tip_before=append.base, blocks={tip.block: block})


def degraded(decision: Decision, failure: str) -> Decision:
    """The decision with the reason why its session is not stored; a refused rewriting stays the reason."""
    return decision._replace(action=Action.DEGRADED, reason=decision.reason if _is_refused(decision) else failure)


def _is_refused(decision: Decision) -> bool:
    """Whether the request is sent as it came because the upstream refuses what we make of it."""
    return decision.reason == Reason.REWRITE_REFUSED


def is_too_small(decision: Decision, case: Case) -> bool:
    """Whether a conversation is new, derived, and too small to be stored yet."""
    found = case.recognised
    is_new = found.is_derived and found.session is None and decision.applied is None and not decision.memory_block.raw
    return is_new and not _is_refused(decision) and is_small(decision.tokens_before, case.policy.window.tokens)
