"""Votes: rounds that judges hold on a conversation, and what is kept of them.

A round is held once at a time for each chain, here and across replicas. What it costs is counted for the session, and
bounded by the session's allowance (`proxy/condensing/allowance.py`). A round is held while that is not used up: judged
by what it will cost, five votes on a fifth of a window would never be held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from proxy.asking import Caller
from proxy.condensing.allowance import left
from proxy.condensing.attempts import Attempts, Resolving, Urgency
from proxy.condensing.leases import Leases
from proxy.condensing.making import work_name
from proxy.request.intake import Case
from proxy.runtime.offload import loaded
from proxy.sessions.keeping import Keeper
from proxy.sessions.session import Session
from strategies.core.budget import Budget
from strategies.core.protocol import Judging, Polling, Verdict
from strategies.core.replay import Replayed
from strategies.core.view import View

NO_ALLOWANCE = "allowance"
HELD_ELSEWHERE = "held-elsewhere"

_log = logging.getLogger(__name__)


class VoteRound(NamedTuple):
    """What came of a round of votes: a verdict, or why there is none; tokens that it cost."""

    verdict: Verdict | None
    skipped: str = ""
    tokens: int = 0


class Judges:
    """Holds rounds of votes; one per app. `allowance` is a share of the session's forwarded prompt tokens.

    Unless `with_text`, what judges say of a conversation is not kept, for they may quote it.
    """

    def __init__(
        self,
        attempts: Attempts,
        keeper: Keeper,
        leases: Leases,
        allowance: float,
        clock: Callable[[], float],
        *,
        with_text: bool = True,
    ) -> None:
        self._attempts = attempts
        self._keeper = keeper
        self._leases = leases
        self._allowance = allowance
        self._with_text = with_text
        self._clock = clock

    async def vote(self, stage: Judging, base: Replayed, case: Case, caller: Caller) -> VoteRound:
        """A round of votes on a view, kept in the session with its verdict; raises nothing."""
        if left(case, self._allowance) <= 0:
            return VoteRound(None, NO_ALLOWANCE)
        view, past, now = base.view, case.past(self._clock()), asyncio.get_running_loop().time()
        work = work_name("vote", view.transcript.digests[-1], base.applied.id if base.applied else "", case)
        async with self._leases.turn(case.request.tenant, work, now, case.recognised.patience) as turn:
            if not turn.held:
                return VoteRound(None, HELD_ELSEWHERE)
            polling = stage.judge(view, _budget(case), past)
            held = await self._round(polling, loaded(len(view.transcript.chain), view.tokens), case, caller)
        await self._keep(stage, held, view, case)
        return held

    async def note(self, stage: Judging, held: VoteRound, view: View, case: Case) -> None:
        """Has the session say why there is no verdict on a view; one that is not stored stays so."""
        state = self._states(stage, held, view, case)
        await self._keeper.amend(case.recognised, lambda session: session._replace(judging=state(session)), opens=False)

    async def _round(self, polling: Polling, messages: int, case: Case, caller: Caller) -> VoteRound:
        try:
            resolving = Resolving(self._attempts.asking(case.policy, Urgency(caller)), messages)
            verdict = await resolving.drive(polling)
        except Exception:  # noqa: BLE001
            # A defect in a judge costs its verdict, nothing else.
            _log.exception("a judge failed")
            return VoteRound(None, "internal-error")
        kept = verdict if self._with_text else replace(verdict, metadata=_without_words(verdict.metadata))
        return VoteRound(kept, tokens=resolving.tokens)

    async def _keep(self, stage: Judging, held: VoteRound, view: View, case: Case) -> None:
        verdict, state = held.verdict, self._states(stage, held, view, case)
        if verdict is None or not case.keeps:
            return

        def change(session: Session) -> Session:
            counted = session.counted(own_tokens=held.tokens, judge_tokens=held.tokens, votes=1)
            return counted.judged(verdict, state(session))

        await self._keeper.amend(case.recognised, change)

    def _states(
        self, stage: Judging, held: VoteRound, view: View, case: Case
    ) -> Callable[[Session], Mapping[str, Any]]:
        """What the state of judgement is after a round, by the verdicts that a session has."""
        past, new = case.past(self._clock()), (held.verdict,) if held.verdict else ()
        return lambda session: stage.state(view, replace(past, verdicts=(*session.verdicts, *new)), held.skipped)


def _without_words(told: Any) -> Any:
    """What is told of votes without their reasoning."""
    if isinstance(told, Mapping):
        return {name: _without_words(value) for name, value in told.items() if name != "reasoning"}
    return [_without_words(each) for each in told] if isinstance(told, list) else told


def _budget(case: Case) -> Budget:
    budget = case.policy.budget
    if budget is None:
        raise ValueError("no vote is held without a window")
    return budget
