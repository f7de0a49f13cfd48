"""Meanings: how many vectors are made after one reply, what they may cost, and when nobody is asked any more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.asking import Caller
from proxy.asking.embeddings import Embedded
from proxy.memory.meaning import BATCH, MOST_BATCHES, PAUSE, Asker, Meanings
from proxy.setting_tables import ModelRole
from proxy.store.base import SessionKey
from strategies.core.effects import Failure
from tests.proxy.asking.support import Clock

pytestmark = pytest.mark.anyio

TEXTS = [f"text {each}" for each in range(2 * BATCH * MOST_BATCHES)]


class Server:
    """Gives every text a vector, at ten tokens each, until it fails."""

    def __init__(self, failure: str = "") -> None:
        self.failure = failure
        self.asked: list[list[str]] = []
        self.callers: list[Caller] = []

    async def embedded(self, texts: Sequence[str], role: ModelRole, caller: Caller) -> Embedded | Failure:
        self.asked.append(list(texts))
        self.callers.append(caller)
        return Failure(self.failure) if self.failure else Embedded(tuple([1.0, 2.0] for _ in texts), 10 * len(texts))


def asker(tenant: str = "t", *, window: int = 1_000_000, forwarded: int = 0) -> Asker:
    key = SessionKey(tenant, "s")
    return Asker(key, lambda background: Caller("m", [], background=background), window, forwarded)


async def test_after_one_reply_a_part_is_made_the_newest_first_and_after_the_next_the_rest() -> None:
    server = Server()
    meanings = Meanings(server, "embed-1", 0.1, Clock())
    await meanings.learn(asker(), TEXTS)
    assert [len(each) for each in server.asked] == [BATCH] * MOST_BATCHES
    assert server.asked[0][0] == TEXTS[-1]
    await meanings.learn(asker(), TEXTS)
    await meanings.learn(asker(), TEXTS)
    assert sorted(text for each in server.asked for text in each) == sorted(TEXTS)
    assert all(caller.background for caller in server.callers)


async def test_a_session_spends_no_more_than_a_window_and_its_share_of_what_it_has_sent() -> None:
    server = Server()
    meanings = Meanings(server, "embed-1", 0.5, Clock())
    await meanings.learn(asker(window=BATCH * 10, forwarded=0), TEXTS)
    assert len(server.asked) == 1
    await meanings.learn(asker(window=BATCH * 10, forwarded=BATCH * 20), TEXTS)
    assert len(server.asked) == 2


async def test_a_query_is_asked_for_only_where_there_is_something_to_hold_it_against() -> None:
    server = Server()
    meanings = Meanings(server, "embed-1", 0.1, Clock())
    assert await meanings.query(asker(), "where?", 1.0) is None
    assert server.asked == []
    await meanings.learn(asker(), ["here"])
    assert await meanings.query(asker(), "where?", 0.0) is None
    assert await meanings.query(asker(), "where?", 1.0) is not None
    assert [caller.background for caller in server.callers] == [True, False]


async def test_what_is_known_already_is_not_waited_for() -> None:
    server = Server()
    meanings = Meanings(server, "embed-1", 0.1, Clock())
    await meanings.learn(asker(), ["here"])
    assert await meanings.query(asker(), "here", 0.0) is not None


async def test_a_tenant_whose_model_is_not_there_asks_again_after_a_while_and_others_at_once() -> None:
    clock, server = Clock(), Server("http-error")
    meanings = Meanings(server, "embed-1", 0.1, clock)
    for tenant in ("t", "t", "other"):
        await meanings.learn(asker(tenant), ["here"])
    assert len(server.asked) == 2
    clock.now, server.failure = PAUSE + 1, ""
    await meanings.learn(asker(), ["here"])
    assert len(server.asked) == 3


async def test_a_call_that_only_came_at_a_bad_time_is_made_after_the_next_reply() -> None:
    server = Server("paused")
    meanings = Meanings(server, "embed-1", 0.1, Clock())
    await meanings.learn(asker(), TEXTS)
    await meanings.learn(asker(), TEXTS)
    assert len(server.asked) == 2
