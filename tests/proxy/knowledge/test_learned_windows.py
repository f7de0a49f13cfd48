"""What is learned of a model's window: lower only, shared, and forgotten in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.knowledge.learned_windows import CountedReply, LearnedWindows, Origin
from proxy.knowledge.profiles import LessonScope
from proxy.overflow import Refusal, RefusedPart
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.stored import StoredSessions
from proxy.store import open_store
from proxy.store.base import Store
from proxy.store.sqlite import SqliteStore
from tests.proxy.store.conftest import Clock

pytestmark = pytest.mark.anyio

MODEL, TTL = LessonScope("m", "tenant"), 1_000


@asynccontextmanager
async def learning(
    *, store: Store | None = None, clock: Clock | None = None, upstream: str = "http://a/v1"
) -> AsyncIterator[LearnedWindows]:
    tasks: OwnedTasks = OwnedTasks()
    kept = store or await open_store("memory://")
    learned = LearnedWindows(upstream, StoredSessions(kept, 1.0).facts, tasks, TTL, clock or Clock())
    learned.refresh(MODEL)
    await tasks.idle()
    yield learned
    await tasks.close()
    if store is None:
        await kept.close()


def told(learned: LearnedWindows, own: int, counted: int) -> int | None:
    """Learns from one usage; returns what the upstream is proven to keep."""
    return learned.learn_from_usage(MODEL, own, CountedReply(own, counted))


def refusal(window: int | None) -> Refusal:
    return Refusal(RefusedPart.INPUT, window)


async def test_a_number_is_taken_as_it_is_and_only_lower_ones_take_its_place() -> None:
    async with learning() as learned:
        for said, known in ((8_192, 8_192), (16_384, 8_192), (4_096, 4_096)):
            learned.learn_from_refusal(MODEL, refusal(said), 60_000)
            window = learned.window(MODEL)
            assert window is not None
            assert (window.tokens, window.origin) == (known, Origin.OVERFLOW)
        assert learned.window(LessonScope("another")) is None


async def test_without_a_number_a_little_less_than_what_was_refused_is_guessed_but_no_less_than_what_passed() -> None:
    async with learning() as learned:
        assert learned.learn_from_refusal(MODEL, refusal(None), 10_000).tokens == 9_000
    async with learning() as learned:
        told(learned, 9_500, 9_600)
        assert learned.learn_from_refusal(MODEL, refusal(None), 10_000).tokens == 9_500


async def test_what_was_learned_is_forgotten_in_time() -> None:
    clock = Clock()
    async with learning(clock=clock) as learned:
        learned.learn_from_refusal(MODEL, refusal(4_096), 9_000)
        clock.now += TTL - 1
        assert learned.window(MODEL) is not None
        clock.now += 2
        assert learned.window(MODEL) is None
        assert learned.learn_from_refusal(MODEL, refusal(8_192), 9_000).tokens == 8_192


async def test_processes_with_one_store_and_one_upstream_share_it() -> None:
    store = await open_store("memory://")
    async with learning(store=store) as learned:
        learned.learn_from_refusal(MODEL, refusal(4_096), 9_000)
        told(learned, 2_000, 2_000)
        await learned.tasks.idle()

        async with learning(store=store) as other, learning(store=store, upstream="http://b/v1") as elsewhere:
            assert other.window(MODEL) == learned.window(MODEL)
            assert elsewhere.window(MODEL) is None
    await store.close()


async def test_what_others_learned_meanwhile_is_read_now_and_then() -> None:
    store, clock = await open_store("memory://"), Clock()
    async with learning(store=store, clock=clock) as learned, learning(store=store, clock=clock) as other:
        other.learn_from_refusal(MODEL, refusal(4_096), 9_000)
        await other.tasks.idle()
        learned.refresh(MODEL)
        assert learned.window(MODEL) is None
        clock.now += 31
        learned.refresh(MODEL)
        await learned.tasks.idle()
        assert learned.window(MODEL) == other.window(MODEL)
    await store.close()


async def test_three_prompts_counted_the_same_teach_a_window_and_two_do_not() -> None:
    async with learning() as learned:
        assert told(learned, 5_000, 4_096) is None
        assert told(learned, 6_000, 4_096) is None
        assert (learned.window(MODEL), learned.truncated_at(MODEL)) == (None, None)
        assert told(learned, 7_000, 4_096) == 4_096
        window = learned.window(MODEL)
        assert window is not None
        assert (window.tokens, window.origin) == (4_096, Origin.TRUNCATION)
        assert learned.truncated_at(MODEL) == 4_096


async def test_a_server_restarted_with_a_larger_window_is_not_taken_to_truncate_any_more() -> None:
    async with learning() as learned:
        for own in (5_000, 6_000, 7_000):
            told(learned, own, 4_096)
        told(learned, 7_500, 7_400)
        assert (learned.window(MODEL), learned.truncated_at(MODEL)) == (None, None)


async def test_a_longer_prompt_that_is_read_whole_disproves_what_was_learned() -> None:
    async with learning() as learned:
        learned.learn_from_refusal(MODEL, refusal(4_096), 9_000)
        told(learned, 4_000, 4_090)
        assert learned.window(MODEL) is not None
        told(learned, 6_000, 6_100)
        assert learned.window(MODEL) is None


@pytest.mark.parametrize(
    "fact",
    [b"", b"{}", b'{"v":1}', b'{"v":1,"window":["x"],"suspect":null}', b'{"v":9}', b'{"v":9,"window":[4096]}', b"\xff"],
)
async def test_a_fact_that_cannot_be_read_is_none(fact: bytes) -> None:
    store = await open_store("memory://")
    async with learning(store=store) as learned:
        await store.put_fact(learned._name(MODEL), fact, 60)
        await learned._read(MODEL)
        assert learned.window(MODEL) is None
    await store.close()


async def test_a_fact_of_an_older_version_is_read() -> None:
    store = await open_store("memory://")
    async with learning(store=store) as learned:
        fact = b'{"v":1,"window":[4096,"overflow",9e9],"suspect":[9000,4000,8000,true]}'
        await store.put_fact(learned._name(MODEL), fact, 60)
        await learned._read(MODEL)
        window = learned.window(MODEL)
        assert window is not None
        assert window.tokens == 4_096
    await store.close()


async def test_where_the_store_is_out_this_process_knows_all_the_same() -> None:
    store = await open_store("memory://")
    await store.close()
    async with learning(store=store) as learned:
        assert learned.learn_from_refusal(MODEL, refusal(4_096), 9_000).tokens == 4_096
        assert learned.window(MODEL) is not None


class Held(SqliteStore):
    """The store in memory; what it is told waits for a gate."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.told = asyncio.Event()
        self.gate = asyncio.Event()

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        """As it is, when the gate is open."""
        self.told.set()
        await self.gate.wait()
        await super().put_fact(name, fact, ttl)


async def test_what_is_learned_while_the_store_is_told_is_told_to_it_too_and_before_the_app_closes() -> None:
    store = await Held.open(None)
    assert isinstance(store, Held)
    async with learning(store=store) as learned:
        learned.learn_from_refusal(MODEL, refusal(8_192), 9_000)
        await store.told.wait()
        learned.learn_from_refusal(MODEL, refusal(4_096), 9_000)
        store.gate.set()

    async with learning(store=store) as another:
        window = another.window(MODEL)
        assert window is not None
        assert window.tokens == 4_096
    await store.close()


ANOTHER = MODEL._replace(tenant="another")


async def test_a_window_holds_for_its_tenant_and_a_proven_one_for_all() -> None:
    async with learning() as learned:
        learned.learn_from_refusal(MODEL, refusal(4_096), 9_000)
        assert learned.window(MODEL) is not None
        assert learned.window(ANOTHER) is None
        learned.learn_from_refusal(MODEL, refusal(8_192), 9_000, proven=True)
        known = learned.window(MODEL), learned.window(ANOTHER)
        assert [each and each.tokens for each in known] == [4_096, 8_192]


async def test_a_guess_and_a_truncation_hold_for_their_tenant_alone() -> None:
    async with learning() as learned:
        learned.learn_from_refusal(MODEL, refusal(None), 10_000, proven=True)
        for own in (5_000, 6_000, 7_000):
            told(learned, own, 4_096)
        assert learned.truncated_at(MODEL) == 4_096
        assert learned.window(ANOTHER) is None


async def test_a_longer_prompt_of_anyone_disproves_what_holds_for_all() -> None:
    async with learning() as learned:
        learned.learn_from_refusal(MODEL, refusal(4_096), 9_000, proven=True)
        learned.learn_from_usage(ANOTHER, 5_000, CountedReply(5_000, 5_000))
        assert learned.window(MODEL) is None
