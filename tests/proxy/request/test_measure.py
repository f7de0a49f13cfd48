"""Measuring: a turn counts its new messages only, and none at all if the length proves enough."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints.chat import ChatCounter
from proxy.request.measure import Measured, Measurer, fits_by_length
from proxy.request.message_cache import MessageCache
from proxy.request.wire import Body
from proxy.tokens.counter import Counted, Counter, CountingPool, Tokenizers
from strategies.core.messages import Reader
from tests.support.chat_bodies import read

TOKENIZERS = Tokenizers()
HISTORY = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "One, two, three."}]


class Tallying(CountingPool):
    """The real pool, which also records what it was asked to count."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def messages(self, counter: Counter, bodies: Sequence[Mapping[str, object]]) -> list[Counted]:
        self.asked.append(len(bodies))
        return await super().messages(counter, bodies)


def body_of(messages: list[Any], **members: Any) -> Body:
    return read(json.dumps({"model": "m", "messages": messages, **members}).encode())


def measured(measurer: Measurer, body: Body, model: str = "gpt-4o") -> Measured:
    return asyncio.run(measurer.measure(body, TOKENIZERS.for_model(model, ChatCounter)))


def test_the_tokens_include_all_messages_and_their_framing() -> None:
    counter = TOKENIZERS.for_model("gpt-4o", ChatCounter)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    found = measured(Measurer(Reader(), Tallying()), body_of(HISTORY, tools=tools))
    overhead = counter.overhead({"model": "m", "messages": HISTORY, "tools": tools}, has_system=True)
    assert found.tokens == sum(counter.message(each) for each in HISTORY) + overhead
    assert found.overhead == overhead > 10
    assert found.exact


def test_a_request_uses_a_count_evicted_while_it_is_measured() -> None:
    measurer = Measurer(Reader(), CountingPool(), most_counts=1)
    alone = measured(measurer, body_of(HISTORY[1:]))
    both = measured(measurer, body_of([{"role": "user", "content": "Before."}, *HISTORY[1:]]))
    assert both.transcript.chain[-1].tokens == alone.transcript.chain[-1].tokens


def test_a_turn_costs_its_new_messages_only() -> None:
    pool = Tallying()
    measurer = Measurer(Reader(), pool)
    first = measured(measurer, body_of(HISTORY))
    again = measured(measurer, body_of([*HISTORY, {"role": "assistant", "content": "Four."}]))
    assert pool.asked == [2, 1]
    assert again.tokens > first.tokens
    assert again.transcript.digests[: len(first.transcript.digests)] == first.transcript.digests


def test_what_one_tenant_has_sent_is_counted_anew_for_another() -> None:
    pool = Tallying()
    measurer = Measurer(Reader(), pool)
    for owner in ("one", "two", "one"):
        asyncio.run(measurer.measure(body_of(HISTORY), TOKENIZERS.for_model("gpt-4o", ChatCounter, owner)))
    assert pool.asked == [2, 2, 0]


def test_other_bytes_are_counted_anew_and_other_tokenizers_too() -> None:
    pool = Tallying()
    measurer = Measurer(Reader(), pool)
    measured(measurer, body_of(HISTORY))
    measured(measurer, body_of([HISTORY[0], {**HISTORY[1], "x": 1}]))
    measured(measurer, body_of(HISTORY), "gpt-4")
    assert pool.asked == [2, 1, 2]


def test_the_same_message_twice_in_one_body_is_measured_like_two() -> None:
    found = measured(Measurer(Reader(), Tallying()), body_of([HISTORY[1], HISTORY[1]]))
    one, two = found.transcript.chain
    assert one.tokens == two.tokens
    assert len(found.transcript.digests) == 2


def test_an_estimate_counts_nothing_and_says_that_it_is_one() -> None:
    pool = Tallying()
    found = asyncio.run(Measurer(Reader(), pool).estimate(body_of(HISTORY)))
    assert pool.asked == []
    assert not found.exact
    assert found.tokens > 0


def test_an_estimate_and_a_count_give_the_same_digests() -> None:
    measurer = Measurer(Reader(), Tallying())
    body = body_of(HISTORY)
    assert asyncio.run(measurer.estimate(body)).transcript.digests == measured(measurer, body).transcript.digests


@given(st.lists(st.text(max_size=60), min_size=1, max_size=5), st.booleans())
def test_a_body_that_fits_by_length_fits_by_count(texts: list[str], ascii: bool) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    body = read(json.dumps({"messages": messages}, ensure_ascii=ascii).encode("utf-8", "replace"))
    tokens = measured(Measurer(Reader(), Tallying()), body).tokens
    assert fits_by_length(body, len(body.data))
    assert tokens <= len(body.data)


def test_pictures_sound_and_files_are_never_estimated_by_their_length() -> None:
    for part in ({"type": "image_url", "image_url": {}}, {"type": "input_audio"}, {"type": "file"}):
        assert not fits_by_length(body_of([{"role": "user", "content": [part]}]), 10**9)
    assert not fits_by_length(body_of(HISTORY), 10)


def test_tools_are_counted_once_for_as_long_as_they_stay_the_same() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "x " * 400, "parameters": {}}}]
    measurer = Measurer(Reader(), Tallying())
    first = measured(measurer, body_of(HISTORY, tools=tools))
    assert measured(measurer, body_of(HISTORY, tools=tools)).overhead == first.overhead
    assert measured(measurer, body_of(HISTORY[1:], tools=tools)).overhead != first.overhead
    assert measured(measurer, body_of(HISTORY, tools=[*tools, *tools])).overhead > first.overhead
    assert measured(measurer, body_of(HISTORY)).overhead < first.overhead


def test_the_parsed_form_is_dropped_after_measuring_and_can_be_parsed_again() -> None:
    seen = MessageCache()
    measurer = Measurer(Reader(), Tallying(), seen)
    data = json.dumps({"messages": HISTORY}).encode()
    first = measured(measurer, read(data, seen))
    again = measured(measurer, read(data, seen))
    assert [each.parsed for each in again.transcript.chain] == [None]
    assert [each.body for each in again.transcript.chain] == [each.body for each in first.transcript.chain]
    assert again == first


def test_an_estimate_is_not_taken_for_a_count() -> None:
    seen = MessageCache()
    measurer = Measurer(Reader(), Tallying(), seen)
    body = read(json.dumps({"messages": HISTORY}).encode(), seen)
    asyncio.run(measurer.estimate(body))
    counter = TOKENIZERS.for_model("gpt-4o", ChatCounter)
    assert measured(measurer, body).transcript.tokens == sum(counter.message(each) for each in HISTORY)


def test_counts_outlive_the_messages_in_the_cache() -> None:
    pool, seen = Tallying(), MessageCache(max_bytes=0)
    measurer = Measurer(Reader(), pool, seen)
    for _ in range(2):
        measured(measurer, read(json.dumps({"messages": HISTORY}).encode(), seen))
    assert len(seen) == 0
    assert pool.asked == [2, 0]
