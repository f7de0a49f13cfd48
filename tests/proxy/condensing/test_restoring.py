"""Restoring the whole history of a client that sends only a window of it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.condensing.intake import Restorer
from proxy.endpoints.chat.endpoint import ChatCounter
from proxy.request.measure import Measured
from proxy.sessions.codec import new_block
from proxy.sessions.histories import MissingMessages, StoredHistory
from proxy.tokens.counter import Counted, Counter, CountingPool, Tokenizers
from strategies.core.messages import Reader, Role
from strategies.core.transcript import Transcript

pytestmark = pytest.mark.anyio

Body = dict[str, Any]
COUNTER = Tokenizers().for_model("gpt-4o", ChatCounter)
READER = Reader([re.compile(r"^\[output\]")])


class Counting(CountingPool):
    """Notes how many messages were counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    async def messages(self, counter: Counter, bodies: Sequence[Any]) -> list[Counted]:
        self.counted += len(bodies)
        return await super().messages(counter, bodies)


@pytest.fixture
async def pool() -> AsyncIterator[Counting]:
    made = Counting()
    yield made
    made.close()


def user(text: str) -> Body:
    return {"role": "user", "content": text}


def assistant(text: str) -> Body:
    return {"role": "assistant", "content": text}


def system(text: str) -> Body:
    return {"role": "system", "content": text}


def read(bodies: Sequence[Body]) -> Transcript:
    return Transcript.of(READER.read(json.dumps(each), each, COUNTER.message(each), COUNTER.dialect) for each in bodies)


DIALOGUE = [make(f"{i}") for i in range(6) for make in (user, assistant)]


def left_out(count: int, *, kept_first: bool = False) -> MissingMessages:
    """The first messages of the dialogue, stored and not sent."""
    whole = read(DIALOGUE)
    history = StoredHistory.of(new_block(whole, 0))
    line = history.tree.line(whole.digests[count - 1])
    return MissingMessages(tuple(line[1 if kept_first else 0 :]), kept_first, history)


async def whole_of(
    pool: CountingPool,
    bodies: Sequence[Body],
    restored: MissingMessages,
) -> Transcript:
    sent = Measured(read(bodies), 3, exact=True)
    whole = await Restorer(READER, pool).restore(sent, restored, COUNTER)
    assert whole.tokens == sent.tokens
    return whole.transcript


async def test_what_was_left_out_is_put_in_front(pool: Counting) -> None:
    whole = await whole_of(pool, DIALOGUE[4:], left_out(4))
    assert whole == read(DIALOGUE)


async def test_or_behind_a_first_message_that_was_kept(pool: Counting) -> None:
    bodies = [system("rules"), DIALOGUE[0], system("late"), *DIALOGUE[5:], system("last")]
    whole = await whole_of(pool, bodies, left_out(5, kept_first=True))
    assert whole.chain == read(DIALOGUE).chain
    assert [(place, each.body["content"]) for place, each in whole.systems] == [
        (0, "rules"),
        (1, "late"),
        (12, "last"),
    ]


async def test_a_turn_reads_and_counts_what_its_window_lost_since_the_last_one(pool: Counting) -> None:
    restored = left_out(4)
    await whole_of(pool, DIALOGUE[4:], restored)
    line = restored.history.tree.line(read(DIALOGUE).digests[5])
    await whole_of(pool, DIALOGUE[6:], restored._replace(messages=tuple(line)))
    assert pool.counted == 6


async def test_tool_output_that_was_sent_first_answers_what_is_put_before_it(pool: Counting) -> None:
    bodies = [user("task"), assistant("ls"), user("[output] a"), user("[output] b"), assistant("done")]
    stored = read(bodies)
    history = StoredHistory.of(new_block(stored, 0))
    restored = MissingMessages(tuple(history.tree.line(stored.digests[1])), False, history)
    whole = await whole_of(pool, bodies[2:], restored)
    assert [each.role for each in whole.chain] == [each.role for each in stored.chain]
    assert whole.chain[2].role is Role.TOOL


@given(count=st.integers(2, 8), kept_first=st.booleans())
async def test_places_have_the_chain_of_the_whole(count: int, kept_first: bool) -> None:
    pool = CountingPool()
    sent = [*(DIALOGUE[:1] if kept_first else ()), *DIALOGUE[count:]]
    restored = left_out(count, kept_first=kept_first)
    whole = await whole_of(pool, sent, restored)
    pool.close()
    assert whole.digests == read(DIALOGUE).digests
