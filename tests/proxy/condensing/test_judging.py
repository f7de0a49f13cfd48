"""A round of votes: held within the session's allowance, recorded with its session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.asking import Caller, Roles
from proxy.condensing.account import Timing
from proxy.condensing.preparing import NO_ALLOWANCE, VoteRound
from proxy.replaying.models import ScriptedSummarizer
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.tokens.counter import Tokenizers
from strategies.core.effects import Ballot, Effect, Result, Vote, Votes
from strategies.core.protocol import Judging
from tests.support.driver import WINDOW, conversation, request

pytestmark = pytest.mark.anyio


class Panel(ScriptedSummarizer):
    """Judges who all vote YES, or who fail."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(Tokenizers())
        self.fails = fails

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """A YES, with the reasons of one task, for each vote that is wanted."""
        if self.fails:
            raise ZeroDivisionError
        return tuple(Votes((Vote(True, "bed 3 is done"),) * each.k) for each in effects if isinstance(each, Ballot))


@asynccontextmanager
async def judged(panel: Panel, **settings: Any) -> AsyncIterator[Services]:
    values = {"strategy": "dynacontext", "window": WINDOW, "store": {"url": "memory://"}, **settings}
    async with open_services(Settings.model_validate(values), summarizer=panel) as services:
        yield services


async def held(services: Services, **totals: int) -> VoteRound:
    """A round of votes on a conversation of twelve turns, whose session has spent `totals`."""
    parts = services.exchanges
    exchange = await parts.open(request(conversation(12)))
    await exchange.store()
    context = await parts.intake.build_context(request(conversation(12)), Timing())
    session, stage = context.recognised.session, context.policy.judging
    assert session is not None
    assert isinstance(stage, Judging)
    context = context._replace(recognised=context.recognised._replace(session=session.with_totals(**totals)))
    preparer = parts.decider.preparer
    return await preparer.vote(stage, exchange.decision.in_context(context), background=True)


async def test_a_verdict_is_recorded_with_its_session() -> None:
    async with judged(Panel()) as services:
        vote_round = await held(services)
        later = await services.exchanges.intake.build_context(request(conversation(12)), Timing())
    assert vote_round.verdict is not None
    assert vote_round.verdict.yes
    assert later.recognised.session is not None
    assert later.recognised.session.verdicts == (vote_round.verdict,)


async def test_no_vote_is_held_once_votes_have_spent_the_allowance() -> None:
    async with judged(Panel()) as services:
        assert await held(services, judge_tokens=1_000_000) == VoteRound(None, NO_ALLOWANCE)


async def test_a_judge_with_a_defect_costs_its_verdict_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with judged(Panel(fails=True)) as services:
        vote_round = await held(services)
    assert vote_round == VoteRound(None, "internal-error")
    assert "a judge failed" in caplog.text
