"""What is learned of a model's window: lower only, shared, and forgotten in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.conversations.stored import StoredSessions
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers import LessonScope
from proxy.servers.windows import LearnedWindows
from proxy.store import open_store
from proxy.store.base import Store
from proxy.store.sqlite import SqliteStore
from proxy.tokens.models import StatedWindow
from tests.support.virtual_time import Clock

MODEL, TTL = LessonScope("m", "tenant"), 1_000


@dataclass
class Server:
    """What a server states when it is asked, and what it has stated when it was asked last."""

    states: int | None = None
    has_stated: int | None = None

    def stated(self, _: LessonScope) -> StatedWindow | None:
        return None if self.has_stated is None else StatedWindow(self.has_stated, None, "stated by a server")

    async def ask_anew(self, _: LessonScope) -> None:
        self.has_stated = self.states


@asynccontextmanager
async def learning(
    *, store: Store | None = None, clock: Clock | None = None, server: Server | None = None
) -> AsyncIterator[LearnedWindows]:
    tasks: OwnedTasks = OwnedTasks()
    kept, asked = store or await open_store("memory://"), server or Server()
    facts = StoredSessions(kept, 1.0).facts
    learned = LearnedWindows(facts, tasks, TTL, clock or Clock(), asked.stated, asked.ask_anew)
    learned.refresh(MODEL)
    await tasks.idle()
    yield learned
    await tasks.close()
    if store is None:
        await kept.close()


def known(learned: LearnedWindows, scope: LessonScope = MODEL) -> int | None:
    window = learned.window(scope)
    return window.tokens if window is not None else None


async def test_only_a_lower_window_takes_the_place_of_one() -> None:
    async with learning() as learned:
        for said, holds in ((8_192, 8_192), (16_384, 8_192), (4_096, 4_096)):
            learned.learn(MODEL, said)
            assert known(learned) == holds
        for another in (LessonScope("another", MODEL.tenant), MODEL._replace(tenant="another")):
            learned.accepted(another, 9_000)
            assert (known(learned), known(learned, another)) == (4_096, None)


async def test_what_was_learned_is_forgotten_in_time() -> None:
    clock = Clock()
    async with learning(clock=clock) as learned:
        learned.learn(MODEL, 4_096)
        clock.now += TTL - 1
        assert learned.window(MODEL) is not None
        clock.now += 2
        assert learned.window(MODEL) is None
        learned.learn(MODEL, 8_192)
        assert known(learned) == 8_192


async def test_processes_with_one_store_and_one_upstream_share_it() -> None:
    store = await open_store("memory://")
    async with learning(store=store) as learned:
        learned.learn(MODEL, 4_096)
        await learned.tasks.idle()
        async with learning(store=store) as other:
            assert other.window(MODEL) == learned.window(MODEL)
            await other.read(MODEL._replace(upstream="http://b/v1"))
            assert other.window(MODEL._replace(upstream="http://b/v1")) is None
    await store.close()


async def test_what_others_learned_meanwhile_is_read_now_and_then() -> None:
    store, clock = await open_store("memory://"), Clock()
    async with learning(store=store, clock=clock) as learned, learning(store=store, clock=clock) as other:
        other.learn(MODEL, 4_096)
        await other.tasks.idle()
        learned.refresh(MODEL)
        assert learned.window(MODEL) is None
        clock.now += 31
        learned.refresh(MODEL)
        await learned.tasks.idle()
        assert learned.window(MODEL) == other.window(MODEL)
    await store.close()


async def test_a_longer_prompt_that_is_accepted_disproves_what_was_learned() -> None:
    async with learning() as learned:
        learned.learn(MODEL, 4_096)
        learned.accepted(MODEL, 4_090)
        assert learned.window(MODEL) is not None
        learned.accepted(MODEL, 6_100)
        assert learned.window(MODEL) is None


async def test_other_processes_forget_only_what_one_has_forgotten() -> None:
    store = await open_store("memory://")
    async with learning(store=store) as learned:
        learned.learn(MODEL, 4_096)
        await learned.tasks.idle()
        async with learning(store=store) as other:
            other.accepted(MODEL, 6_100)
            await other.tasks.idle()
            await learned.read(MODEL)
            assert known(learned) is None
            learned.learn(MODEL, 8_192, shares=False)
            await learned.read(MODEL)
            assert known(learned) == 8_192
    await store.close()


@pytest.mark.parametrize(
    ("before", "asked_anew", "states", "holds"),
    [
        (None, None, None, 2_048),  # no server states anything
        (None, None, 8_192, None),  # first stated after the refusal
        (None, 2_048, 8_192, None),  # as the refusal says, and larger after a restart
        (8_192, 2_048, 8_192, None),  # smaller after a restart, and as before after another
        (32_768, 32_768, 32_768, 2_048),  # more than it takes, whatever it takes
        (32_768, 32_768, 16_384, None),
    ],
)
async def test_another_statement_than_at_the_refusal_ends_a_lesson_here_and_in_the_next_process(
    before: int | None, asked_anew: int | None, states: int | None, holds: int | None
) -> None:
    store, server = await open_store("memory://"), Server(asked_anew, before)
    async with learning(store=store, server=server) as learned:
        learned.learn(MODEL, 2_048)
        assert known(learned) == 2_048
        await learned.tasks.idle()
        server.has_stated = states
        assert known(learned) == holds
    async with learning(store=store, server=Server(states, states)) as another:
        assert known(another) == holds
    await store.close()


async def test_what_the_server_states_too_is_not_kept_for_the_next_process() -> None:
    store = await open_store("memory://")
    async with learning(store=store, server=Server(2_048, 2_048)) as learned:
        learned.learn(MODEL, 2_048)
        await learned.tasks.idle()
        await learned.read(MODEL)
        assert known(learned) == 2_048  # a client may ask for more than the server states
    async with learning(store=store) as another:
        assert known(another) is None
    await store.close()


async def test_a_refusal_that_a_statement_has_not_changed_since_holds() -> None:
    async with learning(server=(server := Server(32_768))) as learned:
        learned.learn(MODEL, 2_048)
        await learned.tasks.idle()
        assert known(learned) is None  # first stated after the refusal
        for _ in range(2):
            learned.learn(MODEL, 2_048)
            await learned.tasks.idle()
            assert known(learned) == 2_048
        server.has_stated = 16_384
        assert known(learned) is None
        learned.learn(MODEL, 4_096)
        assert known(learned) == 4_096


@pytest.mark.parametrize(
    "fact",
    [b"", b"{}", b'{"v":1}', b'{"v":1,"window":["x"],"suspect":null}', b'{"v":9}', b'{"v":9,"window":[4096]}', b"\xff"],
)
async def test_a_fact_that_cannot_be_read_is_none(fact: bytes) -> None:
    store = await open_store("memory://")
    async with learning(store=store) as learned:
        await store.put_fact(learned._name(MODEL), fact, 60)
        await learned.read(MODEL)
        assert learned.window(MODEL) is None
    await store.close()


async def test_where_the_store_is_out_this_process_knows_all_the_same() -> None:
    store = await open_store("memory://")
    await store.close()
    async with learning(store=store) as learned:
        learned.learn(MODEL, 4_096)
        assert known(learned) == 4_096


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


async def test_what_is_learned_while_writing_is_written_too() -> None:
    store = await Held.open(None)
    assert isinstance(store, Held)
    async with learning(store=store) as learned:
        learned.learn(MODEL, 8_192)
        await store.told.wait()
        learned.learn(MODEL, 4_096)
        store.gate.set()
    async with learning(store=store) as another:
        window = another.window(MODEL)
        assert window is not None
        assert window.tokens == 4_096
    await store.close()


async def test_each_change_of_a_window_has_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "proxy.servers"):
        async with learning() as learned:
            for said in (8_192, 8_192, 9_000):
                learned.learn(MODEL, said)
            learned.accepted(MODEL, 8_000)
            learned.accepted(MODEL, 8_200)
    assert [each.getMessage() for each in caplog.records] == [
        "window of m (tenant tenant): 8192 tokens, as the upstream said when it refused a prompt",
        "window of m (tenant tenant): no longer 8192 tokens, because 8200 were accepted",
    ]
