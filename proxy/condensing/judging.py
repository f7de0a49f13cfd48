"""Votes: holds rounds of judges' votes on a conversation, and records their verdicts.

One round is held at a time for each chain, here and across replicas. Its tokens count towards the session's allowance
(`RequestContext.allowance_after_votes`). A round is held while any allowance is left, even if the round costs more:
otherwise five votes on a fifth of a window would never be held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from proxy.asking import Caller
from proxy.condensing.context import ON_EMBEDDINGS, RequestContext
from proxy.condensing.leases import Leases
from proxy.condensing.running import EffectDriver, PipelineRunner, Urgency
from proxy.runtime.owned_tasks import message_load
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
    """The result of a round of votes: a verdict, or the reason why there is none, and the tokens that it cost."""

    verdict: Verdict | None
    skip_reason: str = ""
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Judges:
    """Holds rounds of votes; one per app.

    `allowance` is a share of the session's forwarded prompt tokens. Without `keeps_text` the judges' reasoning is not
    kept, because it may quote the conversation.
    """

    runner: PipelineRunner
    keeper: Keeper
    leases: Leases
    allowance: float
    clock: Callable[[], float]
    keeps_text: bool = True

    async def vote(self, stage: Judging, base: Replayed, context: RequestContext, caller: Caller) -> VoteRound:
        """Holds a round of votes on a view, and stores its verdict in the session; raises nothing."""
        if context.allowance_after_votes(self.allowance) <= context.spent(ON_EMBEDDINGS):
            return VoteRound(None, NO_ALLOWANCE)
        view, facts, now = base.view, context.session_facts(self.clock()), asyncio.get_running_loop().time()
        work = context.work_name("vote", view.transcript.digests[-1], base.applied_id)
        request, patience = context.request, context.recognised.patience
        async with self.leases.turn(request.tenant, work, now, patience, request.trust) as turn:
            if not turn.held:
                return VoteRound(None, HELD_ELSEWHERE)
            polling = stage.judge(view, _budget(context), facts)
            vote_round = await self._hold(
                polling, message_load(len(view.transcript.chain), view.tokens), context, caller
            )
        await self._store(stage, vote_round, view, context)
        return vote_round

    async def note(self, stage: Judging, vote_round: VoteRound, view: View, context: RequestContext) -> None:
        """Stores in the session why there is no verdict on a view; a session that is not stored yet stays so."""
        state = self._state_after(stage, vote_round, view, context)
        await self.keeper.amend(
            context.recognised, lambda session: session._replace(judging=state(session)), creates=False
        )

    async def _hold(self, polling: Polling, messages: int, context: RequestContext, caller: Caller) -> VoteRound:
        try:
            driver = EffectDriver(self.runner.resolver_for(context.policy, Urgency(caller)), messages)
            verdict = await driver.drive(polling)
        except Exception:  # noqa: BLE001
            # A defect in a judge costs its verdict, nothing else.
            _log.exception("a judge failed")
            return VoteRound(None, "internal-error")
        kept = verdict if self.keeps_text else replace(verdict, metadata=_without_reasoning(verdict.metadata))
        return VoteRound(kept, tokens=driver.tokens)

    async def _store(self, stage: Judging, vote_round: VoteRound, view: View, context: RequestContext) -> None:
        verdict, state = vote_round.verdict, self._state_after(stage, vote_round, view, context)
        if verdict is None or not context.may_store:
            return

        def change(session: Session) -> Session:
            counted = session.with_totals(own_tokens=vote_round.tokens, judge_tokens=vote_round.tokens, votes=1)
            return counted.with_verdict(verdict, state(session))

        await self.keeper.amend(context.recognised, change)

    def _state_after(
        self, stage: Judging, vote_round: VoteRound, view: View, context: RequestContext
    ) -> Callable[[Session], Mapping[str, Any]]:
        """A function from a session, with its verdicts, to the state of judgement after a round."""
        facts, new = context.session_facts(self.clock()), (vote_round.verdict,) if vote_round.verdict else ()
        return lambda session: stage.state(
            view, replace(facts, verdicts=(*session.verdicts, *new)), vote_round.skip_reason
        )


def _without_reasoning(metadata: Any) -> Any:
    """The metadata of votes without the judges' reasoning."""
    if isinstance(metadata, Mapping):
        return {name: _without_reasoning(value) for name, value in metadata.items() if name != "reasoning"}
    return [_without_reasoning(each) for each in metadata] if isinstance(metadata, list) else metadata


def _budget(context: RequestContext) -> Budget:
    budget = context.policy.budget
    if budget is None:
        raise ValueError("no vote is held without a window")
    return budget
