"""Putting back the messages that a client has left out, among those that it sent."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.endpoints.chat import ChatCounter
from proxy.request.measure import Measurer
from proxy.request.message_cache import MessageCache
from proxy.request.scanning import DEFAULT_BOUNDS
from proxy.request.wire import Body
from proxy.sessions.histories import Histories
from proxy.sessions.keeping import Keeper
from proxy.sessions.recognition import Identity, Recogniser
from proxy.sessions.stored import StoredSessions
from proxy.sessions.supply import Supplier
from proxy.store import open_store
from proxy.tokens.counter import Counted, Counter, CountingPool, Tokenizers
from strategies.core.messages import Reader, Role
from strategies.core.transcript import Transcript
from tests.proxy.remembered import update
from tests.support import chat_bodies
from tests.support.transcripts import assistant, user

pytestmark = pytest.mark.anyio

Message = dict[str, Any]
COUNTER = Tokenizers().for_model("gpt-4o", ChatCounter)
NAMED = Identity("X-Condenser-Session", "named")


class Counting(CountingPool):
    """Notes how many messages were counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    async def messages(self, counter: Counter, bodies: Sequence[Any]) -> list[Counted]:
        self.counted += len(bodies)
        return await super().messages(counter, bodies)


class Conversation:
    """A session in a store, and a client of it that leaves messages out."""

    def __init__(self, stored: StoredSessions) -> None:
        self.pool, self.cache = Counting(), MessageCache()
        self._stored = stored
        self._measurer = Measurer(Reader([re.compile(r"^\[output\]")]), self.pool, self.cache)
        self._recogniser = Recogniser(stored, ())
        self._keeper = Keeper(stored, ttl=60, clock=lambda: 1_000.0)
        self._supplier = Supplier(stored, Histories(stored), self.cache, 60.0, takes_over=False)

    async def read(self, messages: Sequence[Message]) -> tuple[Body, Transcript]:
        data = json.dumps({"model": "gpt-4o", "messages": messages}).encode()
        body = await chat_bodies.read_through_cache(data, self.cache, DEFAULT_BOUNDS, owner="t")
        return body, (await self._measurer.measure(body, COUNTER)).transcript

    async def store(self, messages: Sequence[Message]) -> Transcript:
        _, transcript = await self.read(messages)
        found = await self._recogniser.recognise("t", NAMED, transcript, self._stored.patience())
        await self._keeper.settle(found, update(transcript))
        return transcript

    async def whole(self, messages: Sequence[Message]) -> Transcript:
        """The transcript of a request with what was put back."""
        body, transcript = await self.read(messages)
        found = await self._recogniser.recognise("t", NAMED, transcript, self._stored.patience())
        restored = await self._supplier.restored(body, found, transcript)
        assert restored is not None
        return (await self._measurer.measure(restored, COUNTER)).transcript


@pytest.fixture
async def conversation() -> AsyncIterator[Conversation]:
    store = await open_store("memory://")
    made = Conversation(StoredSessions(store, 5.0))
    yield made
    made.pool.close()
    await store.close()


def system(text: str) -> Message:
    return {"role": "system", "content": text}


DIALOGUE = [make(f"{i}") for i in range(8) for make in (user, assistant)]


async def test_what_was_left_out_is_put_in_front(conversation: Conversation) -> None:
    stored = await conversation.store(DIALOGUE)
    assert await conversation.whole(DIALOGUE[4:]) == stored


async def test_or_behind_a_first_message_that_was_kept(conversation: Conversation) -> None:
    stored = await conversation.store(DIALOGUE)
    whole = await conversation.whole([system("rules"), DIALOGUE[0], system("late"), *DIALOGUE[5:], system("last")])
    assert whole.chain == stored.chain
    assert [(place, each.body["content"]) for place, each in whole.systems] == [(0, "rules"), (1, "late"), (16, "last")]


async def test_what_was_counted_when_it_was_sent_is_not_counted_again(conversation: Conversation) -> None:
    await conversation.store(DIALOGUE)
    await conversation.whole(DIALOGUE[4:])
    await conversation.whole(DIALOGUE[6:])
    assert conversation.pool.counted == len(DIALOGUE)


async def test_tool_output_that_was_sent_first_answers_what_is_put_before_it(conversation: Conversation) -> None:
    outputs = user("[output] a"), user("[output] b")
    bodies = [user("task"), assistant("ls"), *outputs, assistant("cat"), user("[output] c")]
    stored = await conversation.store(bodies)
    whole = await conversation.whole(bodies[2:])
    assert [each.role for each in whole.chain] == [each.role for each in stored.chain]
    assert whole.chain[2].role is Role.TOOL


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(count=st.integers(2, 10), kept_first=st.booleans())
async def test_places_have_the_chain_of_the_whole(count: int, kept_first: bool, conversation: Conversation) -> None:
    stored = await conversation.store(DIALOGUE)
    sent = [*(DIALOGUE[:1] if kept_first else ()), *DIALOGUE[count:]]
    assert (await conversation.whole(sent)).digests == stored.digests
