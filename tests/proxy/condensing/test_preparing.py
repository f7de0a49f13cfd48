"""Preparing: works on a snapshot of one branch, for one tenant and model at a time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.asking import Caller, Roles
from proxy.bodies.wire import ClientRequest
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.condensing.account import Timing
from proxy.condensing.attempt import Turn
from proxy.condensing.preparing import MAX_HELD
from proxy.condensing.traits import DECODERS
from proxy.conversations.codec import Records
from proxy.conversations.session import session_key
from proxy.reasons import Action, Trigger
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.store.base import StoreKey
from proxy.store.sqlite import SqliteStore
from proxy.tokens.counter import Tokenizers
from proxy.turn import drive
from strategies.core.condensation import Condensation
from strategies.core.effects import Ballot, Effect, Result, Vote, Votes
from tests.support.driver import request
from tests.support.signals import BOUND
from tests.support.stage import Message, chat

pytestmark = pytest.mark.timeout(BOUND * 2)
KEY = StoreKey("t", session_key("s"))
WINDOW = 16_384
MEGABYTE = 1024 * 1024
TURNS = 200
"""Turns of the event loop that the way to a vote takes at the most."""


class Watched(SqliteStore):
    """The store in memory; it tells which works were claimed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: list[str] = []

    async def claim(self, tenant: str, name: str, holder: str, ttl: float) -> bool:
        self.asked.append(name)
        return await super().claim(tenant, name, holder, ttl)


class Judges(ScriptedSummarizer):
    """Votes YES when the gate is open, and summarizes as scripted."""

    def __init__(self) -> None:
        super().__init__(Tokenizers())
        self.gate = asyncio.Event()
        self.asked = 0

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """One YES for each vote that is wanted; as scripted for a text."""
        if not any(isinstance(each, Ballot) for each in effects):
            return await super().resolve(effects, roles, caller)
        self.asked += 1
        await self.gate.wait()
        return tuple(Votes((Vote(True, "done"),) * each.k) for each in effects if isinstance(each, Ballot))


@asynccontextmanager
async def running(**more: Any) -> AsyncIterator[tuple[Services, Watched, Judges]]:
    store, judges = await Watched.open(None), Judges()
    assert isinstance(store, Watched)
    settings = Settings.model_validate({"window": WINDOW, "strategy": "dynacontext", **more})
    async with open_services(settings, store=store, summarizer=judges) as built:
        yield built, store, judges
    await store.close()


def chat_request(
    messages: Sequence[Message] | None = None, model: str = "m", user: str = "", **ours: str
) -> ClientRequest:
    return request(messages or chat(12), {"model": model, "user": user}, **ours)


async def settled(built: Services, asked: ClientRequest) -> Turn:
    turn = await drive.decide(built, asked)
    assert turn.sent.stores
    await drive.store(built, turn)
    return turn


async def test_a_verdict_is_followed_on_the_view_that_was_judged() -> None:
    async with running(strategy="dynacontext+extract", inline_timeout=0.05) as (built, store, judges):
        turn = await settled(built, chat_request(chat(24), force="true", options="dynacontext.judge=inline"))
        decision = turn.sent.decision
        assert (decision.action, decision.reason) == (Action.CONDENSED, "summary-timeout")
        judges.gate.set()
        await built.background.idle()
        snapshot = await store.load(KEY)
        session = Records(decoders=DECODERS).session(snapshot) if snapshot else None
        assert session is not None
        (judged,) = [each for each in session.condensations if each.trigger == Trigger.JUDGE]
        assert (judged.parent, judged.depth) == (None, 1)


async def test_a_new_branch_does_not_take_anothers_work() -> None:
    async def work(made: Condensation) -> Condensation:
        return made

    async with running(strategy="extract+half-window") as (built, _, _):
        first = (await settled(built, chat_request(force="true"))).sent.decision
        assert first.applied is not None
        elsewhere = [{"role": "user", "content": "Plan my kitchen."}, *chat(12)[2:]]
        asked = chat_request(elsewhere), chat_request()
        other, same = [await drive.take_in(built, each, Timing()) for each in asked]
        built.background.start(work(first.applied), (KEY, "main"))
        wait, deadline = (
            built.decider.preparer.wait_for_preparation,
            asyncio.get_running_loop().time() + BOUND,
        )
        assert await wait(other, deadline) is None
        assert await wait(same, deadline) == first.applied


async def test_a_yes_makes_a_record_beside_a_prepared_one() -> None:
    async with running() as (built, _store, judges):
        turn = await settled(built, chat_request())
        context = await drive.take_in(built, chat_request(), Timing())
        drive.follow_up(built, turn)
        maker = built.decider.maker
        raw = turn.sent.decision._replace(context=context, applied=None)
        for_a_mark = await maker.prepare(raw, background=True)
        assert for_a_mark.condensation is not None
        judges.gate.set()
        await built.background.idle()
        condensed = (await drive.decide(built, chat_request(chat(13)))).sent.decision
        assert (condensed.action, condensed.trigger) == (Action.CONDENSED, Trigger.JUDGE)
        assert condensed.applied is not None
        assert condensed.applied.digest == for_a_mark.condensation.digest
        assert {card.condensation for card in condensed.applied.cards} <= {condensed.applied.id}


async def test_what_another_replica_has_claimed_is_not_started_here() -> None:
    async with running() as (built, store, judges), running() as (other, theirs, their_judges):
        their_judges.gate.set()
        drive.follow_up(other, await settled(other, chat_request()))
        await other.background.idle()
        vote, *_ = theirs.asked
        assert await store.claim("t", vote, "another replica", 60)
        judges.gate.set()
        drive.follow_up(built, await settled(built, chat_request()))
        await built.background.idle()
        assert vote in store.asked[1:]
        assert judges.asked == 0


async def test_sessions_and_models_do_not_share_a_round_of_votes() -> None:
    async with running() as (built, store, judges):
        judges.gate.set()
        for asked in (
            chat_request(),
            chat_request(session="another"),
            chat_request(session="a third", model="another"),
        ):
            drive.follow_up(built, await settled(built, asked))
            await built.background.idle()
        # A round of votes, and what follows from it, for each.
        assert len(store.asked) == len(set(store.asked)) == 6


async def test_waiting_votes_hold_a_bounded_number_of_bytes() -> None:
    async with running() as (built, _store, judges):
        for number in range(MAX_HELD // MEGABYTE + 4):
            await asked_for_votes(built, chat_request(user="x" * MEGABYTE, session=f"s{number}"))
        waiting = judges.asked
        judges.gate.set()
        await built.background.idle()
        await asked_for_votes(built, chat_request(session=f"s{number}"))
        assert 0 < waiting * MEGABYTE <= MAX_HELD
        assert judges.asked == waiting + 1


async def asked_for_votes(built: Services, asked: ClientRequest) -> None:
    """A request whose votes have been asked for, as far as they are."""
    drive.follow_up(built, await settled(built, asked))
    for _ in range(TURNS):
        await asyncio.sleep(0)
