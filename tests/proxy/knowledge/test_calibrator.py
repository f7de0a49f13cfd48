"""Learning from replies: at once while little is known; later an expected count alone causes no fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from proxy.knowledge.anchor import UNCALIBRATED, Anchor, CountedPrompt
from proxy.knowledge.calibrator import Calibrator, Progress
from proxy.knowledge.prices import Features
from proxy.knowledge.profiles import LessonScope
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.stored import StoredSessions
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
        """As it is, when it may."""
        self.given += 1
        self.begun.set()
        await self.gate.wait()
        await super().put_fact(name, fact, ttl)


@asynccontextmanager
async def learning(
    store: Store | None = None,
) -> AsyncIterator[tuple[Calibrator, list[Features], OwnedTasks]]:
    """A calibrator, the lines that it has reported, and its tasks."""
    store, tasks = store or await open_store("memory://"), OwnedTasks()
    lines: list[Features] = []

    def report(_model: str, progress: Progress) -> None:
        if progress.prices not in lines:
            lines.append(progress.prices)

    yield Calibrator("u", StoredSessions(store, 1.0).facts, tasks, ttl=60, clock=time.time, report=report), lines, tasks
    await tasks.close()
    await store.close()


def reply(calibrator: Calibrator, number: int, hidden: int = HIDDEN) -> None:
    """A reply to a first request of a conversation, to which the upstream adds so many tokens."""
    of = transcript(number)
    view = fold(of, (), 3, WORDS)
    asked = CountedPrompt(of, 3, "words", "f", scope=SCOPE, conversation=str(number))
    calibrator.learn(asked, UNCALIBRATED, view, "", view.tokens + hidden)


TALK = transcript(0)


def request(overhead: int) -> CountedPrompt:
    """One with that many tokens of tools."""
    return CountedPrompt(TALK, overhead, "words", f"{overhead}", scope=SCOPE)


def counted(calibrator: Calibrator, overhead: int, applied: str = "", before: Anchor | None = None) -> Anchor | None:
    """What comes of a reply that counts as we do."""
    asked, view = request(overhead), fold(TALK, (), overhead, WORDS)
    known = calibrator.calibrate(asked, before, None)
    return calibrator.learn(asked, known, view, applied, view.tokens)


async def test_a_prompt_that_has_become_much_shorter_outside_of_its_chain_is_an_anchor_too() -> None:
    async with learning() as (calibrator, _, _):
        long = counted(calibrator, 5_000)
        short = counted(calibrator, 3, before=long)
        assert short is not None
        assert short.counted == TALK.tokens + 3


async def test_of_views_that_end_alike_the_anchor_of_its_own_branch_is_taken() -> None:
    async with learning() as (calibrator, _, _):
        own = counted(calibrator, 3, "c1")
        counted(calibrator, 3, "c2")
        grown = calibrator.calibrate(request(3), own, None).grown
        assert grown is not None
        assert grown.anchor == own


async def test_while_little_is_known_every_reply_counts() -> None:
    async with learning() as (calibrator, lines, _):
        for number in range(4):
            reply(calibrator, number)
        assert len(lines) == 4
        assert abs(lines[-1].hidden - HIDDEN) < 60


async def test_replies_that_were_predicted_are_not_fitted_one_by_one() -> None:
    async with learning() as (calibrator, lines, _):
        for number in range(ENOUGH):
            reply(calibrator, number)
        before = len(lines)
        for number in range(ENOUGH, 2 * ENOUGH):
            reply(calibrator, number)
        assert len(lines) <= before + 1


async def test_what_is_learned_while_a_share_is_under_way_is_shared_with_the_next_reply() -> None:
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


async def test_an_upstream_that_begins_to_count_otherwise_is_noticed_all_the_same() -> None:
    async with learning() as (calibrator, _, tasks):
        for number in range(ENOUGH):
            reply(calibrator, number)
        for number in range(ENOUGH, 3 * ENOUGH):
            reply(calibrator, number, hidden=4 * HIDDEN)
        await tasks.idle()
        progress = await calibrator.progress(MODEL, "words")
        assert progress.prices.hidden > 3 * HIDDEN
