"""Cached prefixes: a request that continues from one is measured as if nothing had been cached."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Sequence
from typing import Any
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints.chat import ChatCounter
from proxy.request.measure import (
    LENGTH_ESTIMATE,
    MAX_NEW_MESSAGES,
    MIN_MESSAGES,
    CachedPrefix,
    Measured,
    Measurer,
    Prefixes,
    end_of_systems,
)
from proxy.request.message_cache import ENTRY_BYTES, MAX_BYTES, Element, MessageCache
from proxy.tokens.counter import Counter, CountingPool, Tokenizers
from strategies.core.messages import Reader
from strategies.core.transcript import Transcript
from tests.proxy.request.test_wire import FEW
from tests.support import chat_bodies as wire

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


@FEW
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


def test_a_conversation_has_a_prefix_that_moves_on_with_it() -> None:
    reading = Reading()
    for length in range(MIN_MESSAGES + 2, len(MESSAGES), 2):
        reading.take(MESSAGES[:length])
        assert reading.prefixes == [reading.body.elements[-2]]


def test_a_prefix_is_found_although_the_last_message_was_rewritten() -> None:
    reading = Reading()
    reading.take([*MESSAGES, {"role": "user", "content": "What is it?"}])
    reading.take([*MESSAGES, {"role": "user", "content": "What is it? (3 notes found)"}])
    found = reading.found()
    assert found is not None
    assert len(found.elements) == len(MESSAGES) - 1  # all but the system message


def test_a_prefix_is_found_although_the_system_prompt_has_changed() -> None:
    reading = Reading()
    for hour in range(3):
        system = {"role": "system", "content": f"It is {hour} o'clock."}
        assert_same(reading.take([system, *MESSAGES[1:]]), Reading().take([system, *MESSAGES[1:]]))
        found = reading.found()
        assert found is not None
        assert len(found.elements) == len(MESSAGES) - 2


def test_a_prefix_of_another_conversation_is_not_used() -> None:
    reading = Reading()
    reading.take([*MESSAGES, {"role": "user", "content": "One"}, {"role": "assistant", "content": "1"}])
    forked = [*MESSAGES, {"role": "user", "content": "Two"}, {"role": "assistant", "content": "2"}]
    assert_same(reading.take(forked), Reading().take(forked))
    changed = [{"role": "user", "content": "Another start."}, *forked]
    assert_same(reading.take(changed), Reading().take(changed))


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
    assert reading.prefixes == [reading.body.elements[-2]]


def test_counts_of_different_counters_are_not_mixed() -> None:
    reading = Reading()
    reading.take(MESSAGES)
    assert reading.found() is not None
    assert reading.found("another tokenizer") is None


def test_a_prefix_far_back_is_not_searched() -> None:
    reading = Reading()
    reading.take(MESSAGES)
    reading.take([*MESSAGES, *({"role": "user", "content": f"more {i}"} for i in range(MAX_NEW_MESSAGES))])
    assert reading.prefixes == [reading.body.elements[len(MESSAGES) - 2], reading.body.elements[-2]]


def test_short_conversations_have_no_prefix() -> None:
    reading = Reading()
    reading.take(MESSAGES[:MIN_MESSAGES])
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


def test_messages_outside_of_the_cache_have_no_prefix() -> None:
    reading = Reading(max_bytes=0)
    reading.take(MESSAGES)
    assert reading.prefixes == []


def test_a_conversation_with_a_message_too_large_to_cache_has_no_prefix() -> None:
    reading = Reading(max_bytes=16 * 64 * ENTRY_BYTES)
    large = {"role": "user", "content": "x" * (64 * ENTRY_BYTES)}
    reading.take([large, *MESSAGES])
    reading.take([*MESSAGES, large, *MESSAGES[:MIN_MESSAGES]])
    assert reading.prefixes == []
