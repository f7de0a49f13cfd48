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
from proxy.condensing.running import PipelineRunner
from proxy.sessions.keeping import Keeper
from proxy.sessions.session import Session
from strategies.core.protocol import Judging, Verdict
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
        view, now = base.view, asyncio.get_running_loop().time()
        work = context.work_name("vote", view.transcript.digests[-1], base.applied_id)
        request, patience = context.request, context.recognised.patience
        async with self.leases.turn(request.tenant, work, now, patience, request.trust) as turn:
            if not turn.held:
                return VoteRound(None, HELD_ELSEWHERE)
            vote_round = await self._hold(stage, view, context, caller)
        if vote_round.verdict is not None:
            await self.note(stage, vote_round, view, context)
        return vote_round

    async def _hold(self, stage: Judging, view: View, context: RequestContext, caller: Caller) -> VoteRound:
        polling = stage.judge(view, context.budget, context.session_facts(self.clock()))
        try:
            verdict, tokens = await self.runner.ask_judges(polling, view, context.policy, caller)
        except Exception:  # noqa: BLE001
            # A defect in a judge costs its verdict, nothing else.
            _log.exception("a judge failed")
            return VoteRound(None, "internal-error")
        kept = verdict if self.keeps_text else replace(verdict, metadata=_without_reasoning(verdict.metadata))
        return VoteRound(kept, tokens=tokens)

    async def note(self, stage: Judging, vote_round: VoteRound, view: View, context: RequestContext) -> None:
        """Stores in the session a verdict on a view, or why there is none; the latter creates no session."""
        verdict, skip_reason, tokens = vote_round
        facts = context.session_facts(self.clock())

        def change(session: Session) -> Session:
            verdicts = session.verdicts if verdict is None else (*session.verdicts, verdict)
            state = stage.state(view, replace(facts, verdicts=verdicts), skip_reason)
            if verdict is None:
                return session._replace(judging=state)
            return session.with_totals(own_tokens=tokens, judge_tokens=tokens, votes=1).with_verdict(verdict, state)

        await self.keeper.amend(context.recognised, change, creates=verdict is not None)


def _without_reasoning(metadata: Any) -> Any:
    """The metadata of votes without the judges' reasoning."""
    if isinstance(metadata, Mapping):
        return {name: _without_reasoning(value) for name, value in metadata.items() if name != "reasoning"}
    return [_without_reasoning(each) for each in metadata] if isinstance(metadata, list) else metadata
