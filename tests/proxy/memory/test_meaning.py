"""Vectors of passages: how many are made after one reply, what they may cost, and when no more are requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from proxy.asking import Caller
from proxy.asking.calls import Embedded
from proxy.memory.meaning import BATCH, MAX_BATCHES, PAUSE, Asker, Meanings
from proxy.sessions.recognition import Identity, Recognised
from proxy.sessions.session import Session
from proxy.settings.tables import ModelRole
from proxy.store.access import Patience
from proxy.store.base import StoreKey
from strategies.core.effects import Failure
from tests.proxy.asking.support import Clock

pytestmark = pytest.mark.anyio

TEXTS = [f"text {each}" for each in range(2 * BATCH * MAX_BATCHES)]


class Server:
    """Gives every text a vector, at ten tokens each, until it fails."""

    def __init__(self, failure: str = "") -> None:
        self.failure = failure
        self.asked: list[list[str]] = []
        self.callers: list[Caller] = []

    async def embed(self, texts: Sequence[str], role: ModelRole, caller: Caller) -> Embedded | Failure:
        self.asked.append(list(texts))
        self.callers.append(caller)
        return Failure(self.failure) if self.failure else Embedded(tuple([1.0, 2.0] for _ in texts), 10 * len(texts))


class Totals:
    """The books of one session, which a store of its own keeps."""

    def __init__(self) -> None:
        self.session = Session("s", "header", 0.0)

    async def amend(self, found: Recognised, change: Callable[[Session], Session], *, creates: bool) -> None:
        assert not creates
        self.session = change(self.session)


def asker(tenant: str = "t", *, window: int = 1_000_000, forwarded: int = 0, spent: int = 0) -> Asker:
    identity = Identity("header", "s")
    found = Recognised(identity, StoreKey(tenant, "s"), "s", Patience(1.0))

    def caller(background: bool) -> Caller:
        return Caller("m", [], background=background)

    return Asker(found, caller, lambda share: int(window + share * forwarded), spent)


def remembering(
    server: Server, allowance: float = 0.1, clock: Clock | None = None, books: Totals | None = None
) -> Meanings:
    return Meanings(server.embed, books or Totals(), "embed-1", allowance, clock or Clock())


async def test_after_one_reply_a_part_is_made_the_newest_first_and_after_the_next_the_rest() -> None:
    server = Server()
    meanings = remembering(server)
    await meanings.learn(asker(), TEXTS)
    assert [len(each) for each in server.asked] == [BATCH] * MAX_BATCHES
    assert server.asked[0][0] == TEXTS[-1]
    await meanings.learn(asker(), TEXTS)
    await meanings.learn(asker(), TEXTS)
    assert sorted(text for each in server.asked for text in each) == sorted(TEXTS)
    assert all(caller.background for caller in server.callers)


async def test_a_session_spends_no_more_than_a_window_and_its_share_of_what_it_has_sent() -> None:
    server = Server()
    meanings = remembering(server, 0.5)
    await meanings.learn(asker(window=BATCH * 10, forwarded=0), TEXTS)
    assert len(server.asked) == 1
    await meanings.learn(asker(window=BATCH * 10, forwarded=BATCH * 20), TEXTS)
    assert len(server.asked) == 2


async def test_what_a_session_has_spent_is_in_its_totals_queries_too() -> None:
    server, books = Server(), Totals()
    meanings = remembering(server, books=books)
    await meanings.learn(asker(), ["here", "there"])
    assert books.session.totals == {"own_tokens": 20, "embedding_tokens": 20}
    await meanings.query(asker(), "where?", 1.0)
    await meanings.learn(asker(), ["here"])
    assert books.session.totals == {"own_tokens": 30, "embedding_tokens": 30}


async def test_what_was_spent_before_a_restart_or_elsewhere_is_not_spent_again() -> None:
    server = Server()
    await remembering(server).learn(asker(window=100, spent=100), TEXTS)
    assert server.asked == []
    await remembering(server).learn(asker(window=100, spent=99), TEXTS)
    assert len(server.asked) == 1


async def test_a_query_is_asked_for_only_where_there_is_something_to_hold_it_against() -> None:
    server = Server()
    meanings = remembering(server)
    assert await meanings.query(asker(), "where?", 1.0) is None
    assert server.asked == []
    await meanings.learn(asker(), ["here"])
    assert await meanings.query(asker(), "where?", 0.0) is None
    assert await meanings.query(asker(), "where?", 1.0) is not None
    assert [caller.background for caller in server.callers] == [True, False]


async def test_what_is_known_already_is_not_waited_for() -> None:
    server = Server()
    meanings = remembering(server)
    await meanings.learn(asker(), ["here"])
    assert await meanings.query(asker(), "here", 0.0) is not None


async def test_a_tenant_whose_model_is_not_there_asks_again_after_a_while_and_others_at_once() -> None:
    clock, server = Clock(), Server("http-error")
    meanings = remembering(server, clock=clock)
    for tenant in ("t", "t", "other"):
        await meanings.learn(asker(tenant), ["here"])
    assert len(server.asked) == 2
    clock.now, server.failure = PAUSE + 1, ""
    await meanings.learn(asker(), ["here"])
    assert len(server.asked) == 3


async def test_a_call_that_only_came_at_a_bad_time_is_made_after_the_next_reply() -> None:
    server = Server("paused")
    meanings = remembering(server)
    await meanings.learn(asker(), TEXTS)
    await meanings.learn(asker(), TEXTS)
    assert len(server.asked) == 2
