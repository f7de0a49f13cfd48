"""The end of a request and of the app: what later ones depend on is stored, and nothing is left running."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from proxy.asking import Caller, Roles
from proxy.bodies.wire import ClientRequest
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.condensing.attempt import Turn
from proxy.condensing.preparing import Preparer
from proxy.condensing.traits import DECODERS
from proxy.conversations.codec import Records
from proxy.conversations.session import session_key
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.replies import Usage
from proxy.protocols.watching import WatchedReply
from proxy.reasons import Action, Trigger
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import StoreKey, Write
from proxy.store.sqlite import SqliteStore
from proxy.tokens.counter import Tokenizers
from proxy.turn import drive
from strategies.core.budget import Budget
from strategies.core.effects import Effect, Result
from strategies.core.protocol import SessionFacts, Steps
from strategies.core.view import View
from strategies.extract import Extract
from strategies.half_window import HalfWindow
from tests.support.driver import request
from tests.support.signals import BOUND
from tests.support.stage import chat

pytestmark = pytest.mark.timeout(BOUND * 2)
KEY = StoreKey("t", session_key("s"))


class Gated(SqliteStore):
    """The store in memory; calls of one name wait for a gate."""

    waits = ""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.begun, self.gate, self.saved = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        await self._may("remember")
        await super().put_fact(name, fact, ttl)

    async def save(self, key: StoreKey, write: Write) -> bool:
        await self._may("save")
        has_won = await super().save(key, write)
        self.saved.set()
        return has_won

    async def _may(self, name: str) -> None:
        if name == self.waits:
            self.begun.set()
            await self.gate.wait()


class Unreadable(WatchedReply):
    """Has a defect."""

    def usage(self) -> Usage | None:
        raise ZeroDivisionError


def failing(_preparer: Preparer, _decision: Any) -> None:
    raise ZeroDivisionError


@asynccontextmanager
async def running(waits: str = "", **more: Any) -> AsyncIterator[tuple[Services, Gated]]:
    store = await Gated.open(None)
    assert isinstance(store, Gated)
    store.waits = waits
    settings = Settings.model_validate({"window": 16_384, "strategy": "extract", **more})
    async with open_services(settings, store=store, summarizer=ScriptedSummarizer(Tokenizers())) as built:
        yield built, store
    await store.close()


def forced_request(rounds: int = 12) -> ClientRequest:
    return request(chat(rounds), force="true")


def reply(prompt_tokens: int) -> WatchedReply:
    """A whole reply that says how many tokens its prompt had."""
    watched = WatchedReply(CHAT_ENDPOINT, [(b"content-type", b"application/json")], None)
    watched.feed(json.dumps({"choices": [], "usage": {"prompt_tokens": prompt_tokens}}).encode())
    return watched


async def ends(built: Services, turn: Turn, watched: WatchedReply) -> asyncio.Task[None]:
    """The end of a request under way: what the relay awaits before the last byte."""
    storing = drive.settle(built, turn, watched)
    assert storing is not None
    task = asyncio.ensure_future(storing)
    assert isinstance(task, asyncio.Task)
    return task


@pytest.mark.parametrize("waits", ["remember", "save"])
async def test_a_session_is_stored_although_its_client_leaves(waits: str) -> None:
    async with running(waits) as (built, store):
        turn = await drive.decide(built, forced_request())
        # A prompt of which a part was not read is told to others.
        leaving = await ends(built, turn, reply(turn.sent.decision.tokens_after // 3))
        await store.begun.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        store.gate.set()
        await store.saved.wait()
        assert await store.load(KEY) is not None


async def test_defects_after_a_reply_cost_no_session_and_no_reply(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as (built, store):
        watched = Unreadable(CHAT_ENDPOINT, [])
        await (await ends(built, await drive.decide(built, forced_request()), watched))
        assert await store.load(KEY) is not None
    assert "ZeroDivisionError" in caplog.text
    async with running() as (built, _):
        monkeypatch.setattr(Preparer, "follow_up", failing)
        turn = await drive.decide(built, forced_request())
        drive.follow_up(built, turn)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("mode", ["on", "off"])
async def test_the_state_of_judgement_is_noted_when_the_reply_has_left(mode: str) -> None:
    async with running(strategy="dynacontext", background={"mode": mode}) as (built, store):
        turn = await drive.decide(built, forced_request(0))
        await drive.store(built, turn)
        assert await judging(store) == {}
        drive.follow_up(built, turn)
        await built.background.idle()
        assert (await judging(store))["last_skip_reason"] == "early-turns"


async def judging(store: SqliteStore) -> Any:
    snapshot = await store.load(KEY)
    session = Records(decoders=DECODERS).session(snapshot) if snapshot else None
    assert session is not None
    return session.judging


class Silent:
    """A summarizer that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        self.asked.set()
        await asyncio.Event().wait()
        return ()


@pytest.mark.parametrize("strategy", ["half-window", "dynacontext"])
async def test_work_for_a_client_that_left_ends_with_the_app(strategy: str) -> None:
    silent, store = Silent(), await open_store("memory://")
    before = asyncio.all_tasks()
    async with open_services(Settings(strategy=strategy, window=16_384), store=store, summarizer=silent) as built:
        client = asyncio.create_task(drive.decide(built, request(chat(12), force="true")))
        await silent.asked.wait()
        client.cancel()
        await asyncio.wait({client})
        assert asyncio.all_tasks() > before
    assert asyncio.all_tasks() == before
    await store.close()


@contextmanager
def planning(strategy: type[Extract | HalfWindow], gate: threading.Event) -> Iterator[list[View]]:
    """The views for which a strategy plans inside; it holds each plan until the gate opens."""
    views, condense = [], strategy.condense

    def held(self: Any, view: View, budget: Budget, session: SessionFacts) -> Steps:
        views.append(view)
        assert gate.wait(BOUND)
        return condense(self, view, budget, session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategy, "condense", held)
        yield views


@pytest.mark.parametrize(("rounds", "trigger"), [(80, Trigger.THRESHOLD), (100, Trigger.CONTEXT_LIMIT)])
async def test_a_plan_that_asks_no_model_is_made_once_however_long_it_takes(rounds: int, trigger: Trigger) -> None:
    gate = threading.Event()
    with planning(Extract, gate) as views:
        async with running(inline_timeout=0.1, window=32_768) as (built, _):
            asyncio.get_running_loop().call_later(0.3, gate.set)
            asked = (request(chat(rounds)) for _ in range(2))
            turns = await asyncio.gather(*(drive.decide(built, each) for each in asked))
    assert len(views) == 1
    decisions = [each.sent.decision for each in turns]
    assert {(each.action, each.trigger, each.reason) for each in decisions} == {(Action.CONDENSED, trigger, "")}
    assert len({each.body for each in decisions}) == 1


class Late(ScriptedSummarizer):
    """Answers when the gate is open."""

    def __init__(self) -> None:
        super().__init__(Tokenizers())
        self.calls, self.gate = 0, asyncio.Event()

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        self.calls += 1
        await self.gate.wait()
        return await super().resolve(effects, roles, caller)


async def test_a_model_that_is_late_is_planned_for_again_only_once_it_has_answered() -> None:
    late, gate, store = Late(), threading.Event(), await open_store("memory://")
    gate.set()
    settings = Settings(strategy="half-window", window=16_384, inline_timeout=0.3)
    with planning(HalfWindow, gate) as views:
        async with open_services(settings, store=store, summarizer=late) as built:
            turn = await drive.decide(built, forced_request())
            assert (turn.sent.decision.action, turn.sent.decision.reason) == (Action.CONDENSED, "summary-timeout")
            assert (len(views), late.calls) == (1, 1)
            await drive.store(built, turn)
            late.gate.set()
            await built.background.idle()
            assert (len(views), late.calls) == (2, 1)
            snapshot = await store.load(KEY)
            session = Records(decoders=DECODERS).session(snapshot) if snapshot else None
            assert session is not None
            standing, kept = sorted(session.condensations, key=lambda record: record.depth)
            assert (standing.own_tokens, standing.requirement, kept.requirement) == (0, "forced", "prepare")
            assert session.totals["own_tokens"] == kept.own_tokens > 0
    await store.close()


async def test_a_summary_that_comes_too_late_ends_with_the_app() -> None:
    silent, store = Silent(), await open_store("memory://")
    before = asyncio.all_tasks()
    settings = Settings(strategy="half-window", window=16_384, inline_timeout=0.05)
    async with open_services(settings, store=store, summarizer=silent) as built:
        turn = await drive.decide(built, request(chat(12), force="true"))
        assert turn.sent.decision.reason == "summary-timeout"
        assert turn.sent.stores
        await drive.store(built, turn)
    assert asyncio.all_tasks() == before
    await store.close()
