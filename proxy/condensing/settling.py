"""The end of a request: learns from its reply, stores its session, and starts what follows once the reply has been
sent.

What a later request depends on is stored before the last byte of the reply, in a task of the app, so a client that
leaves meanwhile does not stop it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from proxy.calibration.calibrator import Calibrator, Forwarded
from proxy.chat.usage import Usage
from proxy.condensing.decision import Decision
from proxy.condensing.intake import Case
from proxy.condensing.preparing import Preparer
from proxy.condensing.searching import Memories
from proxy.errors import HistoryUnavailable
from proxy.reasons import Action, Reason
from proxy.sessions.append import Append
from proxy.sessions.keeping import Keeper, SessionUpdate, is_small
from proxy.sessions.recognition import Recognised

_log = logging.getLogger(__name__)


class Settler:
    """Attaches to decisions the callbacks for the end of their request; one per app."""

    def __init__(
        self,
        *,
        keeper: Keeper,
        preparer: Preparer,
        calibrator: Calibrator,
        memories: Memories,
    ) -> None:
        self._keeper = keeper
        self._preparer = preparer
        self._calibrator = calibrator
        self._memories = memories

    def attach_callbacks(self, decision: Decision, case: Case) -> None:
        """Names the branch of a decision whose body is written, and attaches its callbacks.

        They are `learn`, `settle` and `follow_up`. A request that may not be stored gets no `settle` and no
        `follow_up`.
        """
        if case.append is not None and case.recognised.failure and not case.request.controls.dry_run:
            raise HistoryUnavailable(f"This turn could not be stored now ({case.recognised.failure}).")
        decision.learn = self._learn_callback(decision, case)
        decision.hidden_rounds = self._memories.searcher.rounds(decision, case)
        if not case.history.chain:
            return
        session, decision.branch = self._keeper.id_and_branch(case.recognised, case.history, has_tools=case.has_tools)
        too_small = _is_too_small(decision, case)
        if not case.may_store or (too_small and decision.hidden_rounds is None):
            return
        decision.session = decision.session if too_small else session
        decision.head = case.append.head if case.append else ""
        decision.settle = self._settle_callback(decision, case, _update_for(decision, case), too_small=too_small)
        decision.follow_up = lambda: self._follow_up(decision, case)
        if refused := self._keeper.refused:
            _degrade(decision, refused)

    def _learn_callback(self, decision: Decision, case: Case) -> Callable[[Usage], None]:
        """A callback that takes in the usage of the reply to what is sent now."""
        sent = Forwarded(decision.view, decision.applied.id if decision.applied else "")

        def learn(usage: Usage) -> None:
            decision.usage = usage
            if not case.request.controls.no_store:
                decision.anchor = self._calibrator.learn(case.prompt, case.calibrated, sent, usage.prompt)

        return learn

    def _settle_callback(
        self, decision: Decision, case: Case, update: SessionUpdate, *, too_small: bool
    ) -> Callable[[Mapping[str, Any] | None], Awaitable[None]]:
        """A callback that stores the session once the upstream has answered; a small one only for its hidden rounds."""

        async def settle(reply: Mapping[str, Any] | None) -> None:
            complete = _with_reply(update, decision)
            if too_small and complete.patch is None:
                return
            if case.append is not None:
                await self._settle_append(decision, case.recognised, complete, case.append, reply)
            else:
                await self._keeper.settle(case.recognised, complete)

        return settle

    async def _settle_append(
        self,
        decision: Decision,
        recognised: Recognised,
        update: SessionUpdate,
        append: Append,
        reply: Mapping[str, Any] | None,
    ) -> None:
        """Stores an append with its reply; raises `HistoryUnavailable` if they are not stored."""
        if reply is None:
            why = "its reply has no message that can be stored, or is too large"
        elif failure := await self._keeper.settle(recognised, _with_appended(update, append, reply)):
            _degrade(decision, failure)
            why = failure
        else:
            return
        error = HistoryUnavailable(f"This turn was not stored ({why}); the history ends where it ended before.")
        error.headers = decision.headers(accepted=False)
        raise error

    def _follow_up(self, decision: Decision, case: Case) -> None:
        try:
            self._preparer.follow_up(decision, case)
            self._memories.injector.follow(case)
        except Exception:  # noqa: BLE001
            # The reply has been sent: a defect costs only what would have been ready for the next one.
            _log.exception("a reply was not followed up")


def _update_for(decision: Decision, case: Case) -> SessionUpdate:
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


def _with_reply(update: SessionUpdate, decision: Decision) -> SessionUpdate:
    """The update with what the reply has shown."""
    rounds = decision.hidden_rounds
    return update._replace(
        usage=decision.usage,
        anchor=decision.anchor,
        reply=decision.reply_ending,
        patch=rounds.patch if rounds else None,
        memory_tokens=rounds.spent_tokens if rounds else 0,
    )


def _with_appended(update: SessionUpdate, append: Append, reply: Mapping[str, Any]) -> SessionUpdate:
    """The update of append mode, which stores the request's messages and the reply."""
    tip, block = append.block(reply)
    return update._replace(tip=tip, tip_before=append.base, blocks={tip.block: block})


def _degrade(decision: Decision, failure: str) -> None:
    """Notes in a decision why its session is not stored; a refused rewriting stays the reason."""
    decision.action = Action.DEGRADED
    decision.reason = decision.reason if _is_refused(decision) else failure


def _is_refused(decision: Decision) -> bool:
    """Whether the request is sent as it came because the upstream refuses what we make of it."""
    return decision.reason == Reason.REWRITE_REFUSED


def _is_too_small(decision: Decision, case: Case) -> bool:
    """Whether a conversation is new, derived, and too small to be stored yet."""
    found = case.recognised
    is_new = found.is_derived and found.session is None and decision.applied is None and not decision.memory_block.raw
    return is_new and not _is_refused(decision) and is_small(decision.tokens_before, case.policy.window.tokens)
