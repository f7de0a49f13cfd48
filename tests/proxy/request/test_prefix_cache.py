"""What a conversation began with: a request that goes on from it is taken in as if nothing had come before."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.calibration.features import of_messages
from proxy.request import wire
from proxy.request.measure import BY_LENGTH, Measured, Measurer
from proxy.request.message_cache import ENTRY_BYTES, MOST_BYTES, Element, MessageCache
from proxy.request.prefix_cache import LEAST, MOST_NEW, CachedPrefix, beginning_of, behind_systems
from proxy.tokens.counter import Counter, CountingPool, Tokenizers
from strategies.core.transcript import Reader, Transcript
from tests.proxy.request.test_wire import FEW

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent."},
    *(
        {"role": role, "content": f"{role} {i} {'x' * (i % 7)} ü"}
        for i in range(2 * LEAST)
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
    """Takes bodies in, one after the other."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.seen = MessageCache(most_bytes)
        self._measurer = Measurer(Reader(), CountingPool(), self.seen)
        self.body = wire.read(b'{"messages":[{"role":"user"}]}')

    def take(self, messages: Sequence[dict[str, Any]]) -> Measured:
        self.body = wire.read(json.dumps({"messages": messages}).encode(), self.seen)
        return self._measurer.estimate(self.body)

    async def counted(self, counter: Counter) -> Measured:
        """What was taken in last, with its tokens counted."""
        return await self._measurer.measure(self.body, counter)

    def found(self, counted_by: str = BY_LENGTH) -> CachedPrefix | None:
        """The beginning of what was taken in last."""
        elements = self.body.elements
        return beginning_of(elements[behind_systems(elements) :], counted_by)

    @property
    def beginnings(self) -> list[Element]:
        return [each for each in self.body.elements if each.beginnings]


def known(transcript: Transcript) -> list[object]:
    worked_out = transcript.digests, transcript.unknown, transcript.tokens, transcript.system_tokens
    return [transcript, *worked_out, transcript.task, transcript.last_user]


def assert_same(one: Measured, other: Measured) -> None:
    assert known(one.transcript) == known(other.transcript)
    assert one.features == pytest.approx(of_messages(one.transcript.chain))
    assert (one.overhead, one.outside) == (other.overhead, other.outside)


@FEW
@given(
    st.lists(
        st.tuples(st.lists(systems, max_size=2), st.integers(LEAST, 3 * LEAST), st.lists(others, max_size=4)),
        min_size=1,
        max_size=6,
    )
)
def test_a_message_list_is_taken_in_alike_whatever_it_went_on_from(
    turns: list[tuple[list[Any], int, list[Any]]],
) -> None:
    reading = Reading()
    for head, length, more in turns:
        messages = [*head, *MESSAGES[1:length], *more]
        assert_same(reading.take(messages), Reading().take(messages))


def test_a_conversation_has_a_beginning_which_moves_on_with_it_and_the_first_one() -> None:
    reading = Reading()
    for length in range(LEAST + 2, len(MESSAGES), 2):
        reading.take(MESSAGES[:length])
        assert set(reading.beginnings) == {reading.body.elements[LEAST], reading.body.elements[-2]}


def test_conversations_that_begin_alike_go_on_from_the_same_beginning_though_others_have_left_it() -> None:
    reading = Reading()
    for name in ("one", "two", "three"):
        forked = [*MESSAGES, {"role": "user", "content": name}]
        reading.take(forked)
        found = reading.found()
        assert found is not None
        assert found.is_first
        assert len(found.elements) == len(MESSAGES) - 1
        reading.take([*forked, {"role": "assistant", "content": f"{name}!"}, {"role": "user", "content": "And now?"}])


def test_a_turn_goes_on_from_the_beginning_although_its_last_message_was_rewritten() -> None:
    reading = Reading()
    reading.take([*MESSAGES, {"role": "user", "content": "What is it?"}])
    reading.take([*MESSAGES, {"role": "user", "content": "What is it? (3 notes found)"}])
    found = reading.found()
    assert found is not None
    assert len(found.elements) == len(MESSAGES) - 1  # all but the system message


def test_a_turn_goes_on_from_the_beginning_although_the_time_of_day_stands_in_its_system_prompt() -> None:
    reading = Reading()
    for hour in range(3):
        system = {"role": "system", "content": f"It is {hour} o'clock."}
        assert_same(reading.take([system, *MESSAGES[1:]]), Reading().take([system, *MESSAGES[1:]]))
        found = reading.found()
        assert found is not None
        assert len(found.elements) == len(MESSAGES) - 2


def test_a_beginning_that_another_conversation_has_moved_on_is_not_taken_for_ones_own() -> None:
    reading = Reading()
    reading.take([*MESSAGES, {"role": "user", "content": "One"}, {"role": "assistant", "content": "1"}])
    forked = [*MESSAGES, {"role": "user", "content": "Two"}, {"role": "assistant", "content": "2"}]
    assert_same(reading.take(forked), Reading().take(forked))
    changed = [{"role": "user", "content": "Another start."}, *forked]
    assert_same(reading.take(changed), Reading().take(changed))


@pytest.mark.anyio
async def test_a_conversation_that_is_counted_in_two_ways_goes_on_from_a_beginning_of_each() -> None:
    reading, counter = Reading(), Tokenizers().for_model("m")
    for length in range(LEAST + 2, len(MESSAGES), 2):
        reading.take(MESSAGES[:length])
        exact = await reading.counted(counter)
        assert exact.transcript.tokens == sum(map(counter.message, MESSAGES[:length]))
        for kind in (BY_LENGTH, counter.cache_key):
            found = reading.found(kind)
            assert found is not None
            assert len(found.elements) == length - 2
    assert set(reading.beginnings) == {reading.body.elements[LEAST], reading.body.elements[-2]}


def test_counts_of_another_kind_are_not_mixed() -> None:
    reading = Reading()
    reading.take(MESSAGES)
    assert reading.found() is not None
    assert reading.found("another tokenizer") is None


def test_a_beginning_far_back_is_not_looked_for() -> None:
    reading = Reading()
    reading.take(MESSAGES)
    reading.take([*MESSAGES, *({"role": "user", "content": f"more {i}"} for i in range(MOST_NEW))])
    assert reading.beginnings == [reading.body.elements[len(MESSAGES) - 2], reading.body.elements[-2]]


def test_short_conversations_leave_none() -> None:
    reading = Reading()
    reading.take(MESSAGES[:LEAST])
    assert reading.beginnings == []


def test_a_beginning_is_forgotten_with_its_last_message_and_leaves_no_garbage() -> None:
    reading = Reading(most_bytes=2 * len(MESSAGES) * (ENTRY_BYTES + 100))
    reading.take(MESSAGES)
    [last] = reading.beginnings
    (known,) = last.beginnings
    gone = [ref(each) for each in known.elements]
    del last, known
    gc.disable()
    try:
        for i in range(6 * len(MESSAGES)):
            reading.take([{"role": "user", "content": f"another one {i}"}])
        assert [each() for each in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_messages_that_are_not_kept_leave_none() -> None:
    reading = Reading(most_bytes=0)
    reading.take(MESSAGES)
    assert reading.beginnings == []


def test_a_conversation_with_a_message_too_large_to_be_kept_leaves_none() -> None:
    reading = Reading(most_bytes=16 * 64 * ENTRY_BYTES)
    large = {"role": "user", "content": "x" * (64 * ENTRY_BYTES)}
    reading.take([large, *MESSAGES])
    reading.take([*MESSAGES, large, *MESSAGES[:LEAST]])
    assert reading.beginnings == []


def test_a_beginning_does_not_keep_what_was_forgotten_though_its_last_message_is_used_on_and_on() -> None:
    reading = Reading(most_bytes=2 * len(MESSAGES) * (ENTRY_BYTES + 100))
    reading.take(MESSAGES)
    [last] = reading.beginnings
    gone = [ref(each) for each in last.beginnings[0].elements[:-1]]
    gc.disable()
    try:
        for i in range(6 * len(MESSAGES)):
            reading.take([{"role": "user", "content": f"another one {i}"}, dict(last.value)])
        assert last.cost
        assert [each() for each in gone] == [None] * len(gone)
    finally:
        gc.enable()
