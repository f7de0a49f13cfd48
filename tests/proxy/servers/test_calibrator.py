"""Learning from replies, and sharing what was learned."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from proxy.conversations.stored import StoredSessions
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers import LessonScope
from proxy.servers.counting import UNCALIBRATED, Anchor, Calibrator, CountedPrompt
from proxy.servers.figures import Figures
from proxy.store import open_store
from proxy.store.base import Store
from proxy.store.sqlite import SqliteStore
from strategies.core.messages import Reader
from strategies.core.transcript import Transcript
from strategies.core.view import fold
from strategies.dialects.chat import CHAT
from tests.support.signals import BOUND
from tests.support.transcripts import WORDS

MODEL, HIDDEN = "m", 400
SCOPE = LessonScope(MODEL, "t")
ENOUGH = 40


def transcript(number: int) -> Transcript:
    text = f'{{"role":"user","content":"question {number}"}}'
    return Transcript.of(
        [Reader().read(text, {"role": "user", "content": f"question {number}"}, 50 + number % 7, CHAT)]
    )


class SlowStore(SqliteStore):
    """Counts the facts that it is given, and keeps one when it may."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.given, self.begun, self.gate = 0, asyncio.Event(), asyncio.Event()

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        self.given += 1
        self.begun.set()
        await self.gate.wait()
        await super().put_fact(name, fact, ttl)


@asynccontextmanager
async def learning(store: Store | None = None) -> AsyncIterator[tuple[Calibrator, list[Figures], OwnedTasks]]:
    """A calibrator, the figures that it has reported, and its tasks."""
    store, tasks = store or await open_store("memory://"), OwnedTasks()
    told: list[Figures] = []
    facts = StoredSessions(store, 1.0).facts
    yield (
        Calibrator(facts, tasks, ttl=60, clock=time.time, report=lambda _, figures: told.append(figures)),
        told,
        tasks,
    )
    await tasks.close()
    await store.close()


def reply(calibrator: Calibrator, number: int, *, is_exact: bool = True) -> None:
    """A reply to a first request of a conversation, to which the upstream adds so many tokens."""
    of = transcript(number)
    view = fold(of, (), 3, WORDS)
    asked = CountedPrompt(of, 3, "words", "f", "words", is_exact, scope=SCOPE)
    calibrator.learn(asked, UNCALIBRATED, view, "", view.tokens + HIDDEN)


TALK = transcript(0)


def request(overhead: int) -> CountedPrompt:
    """One with that many tokens of tools."""
    return CountedPrompt(TALK, overhead, "words", f"{overhead}", "words", scope=SCOPE)


def counted(calibrator: Calibrator, overhead: int, applied: str = "", before: Anchor | None = None) -> Anchor | None:
    """What comes of a reply that counts as we do."""
    asked, view = request(overhead), fold(TALK, (), overhead, WORDS)
    known = calibrator.calibrate(asked, before, None)
    return calibrator.learn(asked, known, view, applied, view.tokens)


async def test_a_much_shorter_prompt_is_an_anchor_too() -> None:
    async with learning() as (calibrator, _, _):
        long = counted(calibrator, 5_000)
        short = counted(calibrator, 3, before=long)
        assert short is not None
        assert short.counted == TALK.tokens + 3


async def test_each_branch_takes_its_own_anchor() -> None:
    async with learning() as (calibrator, _, _):
        own = counted(calibrator, 3, "c1")
        counted(calibrator, 3, "c2")
        grown = calibrator.calibrate(request(3), own, None).grown
        assert grown is not None
        assert grown.anchor == own


async def test_replies_teach_and_an_estimated_one_does_not() -> None:
    async with learning() as (calibrator, told, _):
        reply(calibrator, 0, is_exact=False)
        assert not told
        for number in range(3 * ENOUGH):
            reply(calibrator, number)
        assert 0 < told[0].offset < 5
        assert abs(told[-1].offset - HIDDEN) < HIDDEN / 10
        assert calibrator.hidden(SCOPE, "words") == round(told[-1].offset)


async def test_lessons_during_a_share_are_shared_with_the_next_reply() -> None:
    store = await SlowStore.open(None)
    assert isinstance(store, SlowStore)
    async with asyncio.timeout(BOUND), learning(store) as (calibrator, _, tasks):
        reply(calibrator, 0)
        await store.begun.wait()
        for number in range(1, ENOUGH):
            reply(calibrator, number)
        store.gate.set()
        await tasks.idle()
        assert store.given == 1
        reply(calibrator, ENOUGH)
        await tasks.idle()
        assert store.given == 2


async def test_another_process_takes_over_what_was_written_last() -> None:
    store = await open_store("memory://")
    async with learning(store) as (one, told, tasks), learning(store) as (other, _, _):
        for number in range(3):
            reply(one, number)
        await tasks.idle()
        assert await other.figures(SCOPE, "words") == told[-1]
        await store.put_fact(one._name(SCOPE, "words"), b"[1,2]", 60)
        assert await other.figures(SCOPE, "words") == told[-1]


async def test_a_new_process_adds_to_stored_figures() -> None:
    store = await open_store("memory://")
    async with learning(store) as (one, _, tasks), learning(store) as (other, _, others):
        for number in range(16):
            reply(one, number)
        await tasks.idle()
        shared = (await one.figures(SCOPE, "words")).offset
        reply(other, 0)
        await others.idle()
        assert (await one.figures(SCOPE, "words")).offset == shared


def _numbers(value: Any) -> bool:
    return all(map(_numbers, value)) if isinstance(value, list) else value is None or isinstance(value, (int, float))


async def test_what_is_shared_is_a_few_numbers() -> None:
    store = await open_store("memory://")
    async with learning(store) as (calibrator, _, tasks):
        reply(calibrator, 0)
        await tasks.idle()
        fact = await store.get_fact(calibrator._name(SCOPE, "words"))
    assert fact is not None
    assert len(fact) < 200
    assert _numbers(json.loads(fact))
