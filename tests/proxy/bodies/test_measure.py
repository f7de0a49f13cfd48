"""Measuring: a turn counts its new messages only, and a request that continues a cached prefix like any other."""

import asyncio
import gc
import json
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.bodies.measure import (
    LENGTH_ESTIMATE,
    MIN_MESSAGES,
    CachedPrefix,
    Measured,
    Measurer,
    Precision,
    Prefixes,
    end_of_systems,
    fits_by_length,
)
from proxy.bodies.message_cache import ENTRY_BYTES, MAX_BYTES, Element, MessageCache
from proxy.bodies.wire import Body
from proxy.protocols.chat import ChatCounter
from proxy.tokens.counter import MOST_CHARS, Counted, Counter, CountingPool, Tokenizers
from strategies.core.messages import Reader
from strategies.core.transcript import Transcript
from tests.proxy.bodies.test_wire import SLOW
from tests.support import chat_bodies as wire
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
    measured(measurer, body_of([HISTORY[0], {**HISTORY[1], "x": 1}]))  # other bytes
    measured(measurer, body_of(HISTORY), "gpt-4")  # another tokenizer
    assert pool.asked[2:] == [1, 2]


def test_what_a_request_leaves_uncounted_is_inexact_until_the_next_one_counts_it() -> None:
    pool = Tallying()
    measurer = Measurer(Reader(), pool)
    body = body_of([{"role": "user", "content": f"{n} " * (MOST_CHARS // 32)} for n in range(100_000, 100_014)])
    found = [measured(measurer, body) for _ in range(4)]
    assert [each.precision for each in found] == [*[Precision.INEXACT] * 2, *[Precision.EXACT] * 2]
    assert found[0].tokens < found[1].tokens < found[2].tokens == found[3].tokens
    assert pool.asked == [14, 9, 4, 0]
    assert found[0].transcript.digests == found[3].transcript.digests


@pytest.mark.parametrize("is_escaped", [True, False])
def test_what_is_left_uncounted_never_counts_more_than_it_has(is_escaped: bool) -> None:
    text = "Каждый раз, когда это произошло, мы записывали в журнал температуру и давление. "
    older = [{"role": "user", "content": f"{number} " + text * 5} for number in range(4)]
    newest = {"role": "user", "content": "word " * (MOST_CHARS // 5 + 1)}
    body = read(json.dumps({"messages": [*older, newest]}, ensure_ascii=is_escaped).encode())
    measurer = Measurer(Reader(), Tallying())
    left, counted = [measured(measurer, body).transcript.chain for _ in range(2)]
    assert all(0 < was.tokens < now.tokens for was, now in zip(left[:4], counted[:4], strict=True))


def test_what_one_tenant_has_sent_is_counted_anew_for_another() -> None:
    pool = Tallying()
    measurer = Measurer(Reader(), pool)
    for owner in ("one", "two", "one"):
        asyncio.run(measurer.measure(body_of(HISTORY), TOKENIZERS.for_model("gpt-4o", ChatCounter, owner)))
    assert pool.asked == [2, 2, 0]


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


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent."},
    *(
        {"role": role, "content": f"{role} {i} {'x' * (i % 7)} ü"}
        for i in range(2 * MIN_MESSAGES)
        for role in ("user", "assistant")
    ),
]
others = st.sampled_from(
    [
        {"role": "user", "content": "Go on."},
        {"role": "system", "content": "It is noon."},
        {"role": "tool", "content": "done", "tool_call_id": "1"},
        {"role": "user", "content": "<tool_output>done</tool_output>"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
    ]
)
systems = st.sampled_from([{"role": role, "content": text} for role in ("system", "developer") for text in "ab"])


class Reading:
    """Reads and measures bodies, one after the other."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.seen = MessageCache(max_bytes)
        self._measurer = Measurer(Reader(), CountingPool(), self.seen)
        self.body = wire.read(b'{"messages":[{"role":"user"}]}')

    def take(self, messages: Sequence[dict[str, Any]]) -> Measured:
        self.body = wire.read(json.dumps({"messages": messages}).encode(), self.seen)
        return asyncio.run(self._measurer.estimate(self.body))

    def counted(self, counter: Counter) -> Measured:
        """What was taken in last, with its tokens counted."""
        return asyncio.run(self._measurer.measure(self.body, counter))

    def found(self, counted_by: str = LENGTH_ESTIMATE) -> CachedPrefix | None:
        """The beginning of what was taken in last."""
        elements = self.body.elements
        return self._measurer.prefixes.find(elements[end_of_systems(elements) :], counted_by)

    @property
    def prefixes(self) -> list[Element]:
        kept = {element for element, _ in self._measurer.prefixes._kept}
        return [element for element in self.body.elements if element in kept]


def known(transcript: Transcript) -> list[object]:
    worked_out = transcript.digests, transcript.tokens, transcript.system_tokens
    return [transcript, *worked_out, transcript.task, transcript.last_user]


def assert_same(one: Measured, other: Measured) -> None:
    assert known(one.transcript) == known(other.transcript)
    assert (one.overhead, one.outside_digest) == (other.overhead, other.outside_digest)


@SLOW
@given(
    st.lists(
        st.tuples(
            st.lists(systems, max_size=2), st.integers(MIN_MESSAGES, 3 * MIN_MESSAGES), st.lists(others, max_size=4)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_cached_prefix_does_not_change_the_count(turns: list[tuple[list[Any], int, list[Any]]]) -> None:
    reading = Reading()
    for head, length, more in turns:
        messages = [*head, *MESSAGES[1:length], *more]
        assert_same(reading.take(messages), Reading().take(messages))


def test_a_conversation_with_two_counters_has_a_prefix_for_each() -> None:
    reading, counter = Reading(), Tokenizers().for_model("m", ChatCounter)
    for length in range(MIN_MESSAGES + 2, len(MESSAGES), 2):
        reading.take(MESSAGES[:length])
        exact = reading.counted(counter)
        assert exact.transcript.tokens == sum(map(counter.message, MESSAGES[:length]))
        for kind in (LENGTH_ESTIMATE, counter.cache_key):
            found = reading.found(kind)
            assert found is not None
            assert len(found.elements) == length - 2
    assert reading.found("another tokenizer") is None
    assert reading.prefixes == [reading.body.elements[-2]]


def test_conversations_that_are_short_or_not_in_the_cache_have_no_prefix() -> None:
    reading = Reading()
    reading.take(MESSAGES[:MIN_MESSAGES])
    assert reading.prefixes == []
    reading = Reading(max_bytes=0)
    reading.take(MESSAGES)
    assert reading.prefixes == []
    reading = Reading(max_bytes=16 * 64 * ENTRY_BYTES)
    large = {"role": "user", "content": "x" * (64 * ENTRY_BYTES)}
    reading.take([large, *MESSAGES])
    reading.take([*MESSAGES, large, *MESSAGES[:MIN_MESSAGES]])
    assert reading.prefixes == []


def test_prefixes_are_bounded_by_bytes_and_leave_no_garbage() -> None:
    reading = Reading()
    reading.take(MESSAGES)
    size = sum(element.cost for element in reading.body.elements)
    prefixes = Prefixes(max_bytes=2 * size)
    gone: list[ref[Element]] = []
    gc.disable()
    try:
        for number in range(5):
            conversation = [{**each, "content": f"{number} {each['content']}"} for each in MESSAGES[1:]]
            reading.take(conversation)
            prefixes.store(reading.body.elements, LENGTH_ESTIMATE, None)
            gone += [ref(element) for element in reading.body.elements[:-1] if number < 2]
        assert 0 < len(prefixes) < 3
        reading = Reading()
        assert [element() for element in gone] == [None] * len(gone)
    finally:
        gc.enable()
