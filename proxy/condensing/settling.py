"""The end of a request: what its reply teaches, its session as it leaves it, and what follows when the reply has left.

What a later request depends on is stored before the last byte of the reply, in a task of the app: a client that leaves
meanwhile takes nothing of it away.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from proxy.calibration.calibrator import Calibrator, Forwarded
from proxy.condensing.decision import Decision
from proxy.condensing.preparing import Preparer
from proxy.memory.searching import Memories
from proxy.reply.usage import Usage
from proxy.request.intake import Case
from proxy.sessions.append import Append
from proxy.sessions.keeping import Keeper, SessionUpdate, is_small

_log = logging.getLogger(__name__)


class Settler:
    """Leaves in decisions what is done at their end; one per app."""

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

    def prepare(self, decision: Decision, case: Case) -> None:
        """Names the branch of a decision whose body is written, and leaves how it learns, settles and is followed."""
        decision.learn = self._learning(decision, case)
        decision.rounds = self._memories.searcher.rounds(decision, case)
        if not case.history.chain:
            return
        session, decision.branch = self._keeper.named(case.recognised, case.history.digests)
        too_small = _is_too_small(decision, case)
        if not case.keeps or (too_small and decision.rounds is None):
            return
        decision.session = decision.session if too_small else session
        decision.head = case.append.head if case.append else ""
        decision.settle = self._settling(decision, case, _turn(decision, case), too_small=too_small)
        decision.follow = lambda: self._follow(decision, case)

    def _learning(self, decision: Decision, case: Case) -> Callable[[Usage, bool], None]:
        """A way to take in the usage that comes back for what is sent now."""
        is_text = case.request.body.is_text
        sent = Forwarded(decision.view, decision.applied.id if decision.applied else "")

        def learn(usage: Usage, suspect: bool) -> None:
            decision.usage = usage
            if not suspect and not case.request.controls.no_store:
                known = case.prompt, case.calibrated
                decision.anchor = self._calibrator.learned(*known, sent, usage.prompt, teaches=is_text)

        return learn

    def _settling(
        self, decision: Decision, case: Case, turn: SessionUpdate, *, too_small: bool
    ) -> Callable[[Mapping[str, Any] | None], Awaitable[None]]:
        """A way to store the session once the upstream has answered; a small one only for its hidden rounds."""

        async def settle(reply: Mapping[str, Any] | None) -> None:
            taught = _taught(turn, decision)
            if too_small and taught.patch is None:
                return
            if case.append is None:
                await self._keeper.settle(case.recognised, taught)
            elif reply is not None:
                await self._keeper.settle(case.recognised, _appended(taught, case.append, reply))

        return settle

    def _follow(self, decision: Decision, case: Case) -> None:
        try:
            self._preparer.follow(decision, case)
            self._memories.injector.follow(case)
        except Exception:  # noqa: BLE001
            # The reply is over: a defect costs what would have been ready for the next one.
            _log.exception("a reply was not followed up")


def _turn(decision: Decision, case: Case) -> SessionUpdate:
    """What a decision adds to its session, before anything is known of its reply."""
    return SessionUpdate(
        case.history,
        dict(case.policy.sticks),
        decision.tokens_before,
        decision.tokens_after,
        decision.own_tokens,
        _applied(decision, case),
        block=decision.block,
        covered=decision.view.covered,
    )


def _applied(decision: Decision, case: Case) -> str:
    """What the branch rests on from now on; a request that only looked, or was `off` for once, leaves it as it was."""
    pipeline = case.policy.pipeline
    if decision.applied is None and (pipeline.is_off or pipeline.observe):
        return case.recognised.last_applied(case.history) or ""
    return decision.applied.id if decision.applied else ""


def _taught(turn: SessionUpdate, decision: Decision) -> SessionUpdate:
    """A turn with what its reply has told."""
    rounds = decision.rounds
    return turn._replace(
        usage=decision.usage,
        anchor=decision.anchor,
        reply=decision.reply,
        patch=rounds.patch if rounds else None,
        memory_tokens=rounds.spent if rounds else 0,
    )


def _appended(turn: SessionUpdate, append: Append, reply: Mapping[str, Any]) -> SessionUpdate:
    """A turn of append mode, which stores its messages and the reply."""
    line, block = append.block(reply)
    return turn._replace(line=line, before=append.before, blocks={line.block: block})


def _is_too_small(decision: Decision, case: Case) -> bool:
    """Whether a conversation that is new and derived is not worth a place in the store yet."""
    found = case.recognised
    is_new = found.is_derived and found.session is None and decision.applied is None and not decision.block.raw
    return is_new and is_small(decision.tokens_before, case.policy.window.tokens)
