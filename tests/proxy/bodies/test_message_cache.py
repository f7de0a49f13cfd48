"""Cached messages: recognised by their bytes, read once, evicted in time, and never mistaken."""

import gc
import json
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.bodies.message_cache import ENTRY_BYTES, MAX_BYTES, Element, MessageCache
from proxy.bodies.scanning import MAX_LEVELS
from proxy.bodies.wire import Body
from proxy.errors import BadRequest
from tests.proxy.bodies.test_wire import SLOW, bodies
from tests.support.chat_bodies import read
from tests.support.transcripts import user

MANY = 32
Made = tuple[list[tuple[str, str]], list[str], str]


def body_bytes(messages: list[Any], **members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **members}, ensure_ascii=False).encode()


LONG = [user(f"{i} {'ü' * (i % 5)}") for i in range(3 * MANY)]


def read_and_kept(data: bytes, cache: MessageCache) -> Body:
    body = read(data, cache)
    cache.keep(body.elements)
    return body


def assert_same(one: Body, other: Body) -> None:
    assert [each.data for each in one.elements] == [each.data for each in other.elements]
    assert [each.value for each in one.elements] == [each.value for each in other.elements]
    assert [each.role for each in one.elements] == [each.role for each in other.elements]
    assert list(one.envelope.members) == list(other.envelope.members)
    assert one.values == other.values
    for messages in (None, b"[7]"):
        for model in (None, "other"):
            if model is None or "model" in one.envelope.members:
                assert one.spliced(messages=messages, model=model) == other.spliced(messages=messages, model=model)


@SLOW
@given(st.lists(bodies(), min_size=1, max_size=2), st.booleans())
def test_a_body_is_read_alike_whatever_is_cached(made: list[Made], with_extension: bool) -> None:
    cache = MessageCache()
    for _, _, text in [*made, *made]:
        whole = text.rstrip()[:-1] + ',"condenser":{"x":1}}' if with_extension else text
        assert_same(read_and_kept(whole.encode(), cache), read(whole.encode()))


@pytest.mark.parametrize("put", ["", "}", "]", '"', ",", "\\", "é", "[", "{", "\x00", "NaN", " "])
def test_the_cache_does_not_change_how_a_body_is_refused(put: str) -> None:
    text = '{"m":"é","messages":[ {"role":"user","content":"h\\"i"} , {"role":"tool","x":[1,{"y":"]"}]}],"n":[{}]}'
    cache = MessageCache()
    read_and_kept(text.encode(), cache)
    for place in range(len(text)):
        broken = (text[:place] + put + text[place + 1 :]).encode()
        assert_alike(broken, cache)


def assert_alike(data: bytes, cache: MessageCache) -> None:
    """What is read from a body, or why it is refused, does not depend on the cache."""
    expected, refused = read_or_refused(data, None)
    found, refused_too = read_or_refused(data, cache)
    assert refused_too == refused
    if expected is not None and found is not None:
        assert_same(found, expected)


def read_or_refused(data: bytes, cache: MessageCache | None) -> tuple[Body | None, tuple[str, str | None]]:
    try:
        return read(data, cache), ("", None)
    except BadRequest as error:
        return None, (error.message, error.param)


def test_only_the_messages_are_recognised_whatever_is_between_them() -> None:
    cache = MessageCache()
    first = read_and_kept(b'{"messages":[{"role":"user"},{"role":"tool"}]}', cache)
    again = read(b'{"messages": [ {"role":"user"} ,\n {"role":"tool"} ]}', cache)
    assert same_objects(first.elements, again.elements)
    data = b'{"tools":[{"messages":[{"role":"no"}]}],"messages":[{"role":"user"},{"role":"tool"}]}'
    assert [each.value["role"] for each in read(data, cache).elements] == ["user", "tool"]


def test_a_message_may_be_as_deep_as_the_body() -> None:
    def nested(levels: int) -> bytes:
        return b'{"messages":[{"role":"user","x":' + b"[" * levels + b"]" * levels + b"}]}"

    for levels in range(MAX_LEVELS - 6, MAX_LEVELS + 3):
        assert_alike(nested(levels), MessageCache())


def test_the_message_unused_for_longest_is_evicted_first() -> None:
    cache = MessageCache(max_bytes=40 * (ENTRY_BYTES + 40))
    texts = [f"{number:04}" for number in range(100)]
    for text in texts:
        read_and_kept(body_bytes([user("rules"), user(text)]), cache)
        assert cache.size <= 40 * (ENTRY_BYTES + 40)
    kept = [text for text in texts if ("chat ", json.dumps(user(text)).encode()) in cache.kept]
    assert kept == texts[-len(kept) :]
    assert len(kept) > 20
    assert ("chat ", json.dumps(user("rules")).encode()) in cache.kept


def test_no_tenant_is_served_a_message_that_another_has_sent() -> None:
    cache = MessageCache()
    data = body_bytes(LONG, tools=[{"type": "function"}])
    bodies_read: dict[str, list[Body]] = {}
    for owner in ("one", "two", "one", "two"):
        body = read(data, cache, owner=owner)
        cache.keep(body.elements)
        bodies_read.setdefault(owner, []).append(body)
    (one, one_again), (two, two_again) = bodies_read.values()
    assert_same(one, two)
    assert same_objects(one.elements, one_again.elements)
    assert same_objects(two.elements, two_again.elements)
    assert not {id(each) for each in one.elements} & {id(each) for each in two.elements}
    assert one.envelope is one_again.envelope
    assert one.envelope is not two.envelope


def test_an_evicted_message_is_not_kept_alive_by_the_message_before_it() -> None:
    cache = MessageCache(max_bytes=40 * (ENTRY_BYTES + 40))
    body = read_and_kept(body_bytes([user("rules"), user("old")]), cache)
    before = body.elements[0]
    for number in range(100):
        read_and_kept(body_bytes([user(str(number))]), cache)
        cache.keep([before])
    del body
    gc.collect()
    assert before.successor is not None
    assert before.successor() is None


def test_a_message_too_large_to_cache_is_still_read() -> None:
    cache = MessageCache(max_bytes=100_000)
    data = body_bytes([user("x" * 50_000), user("y")])
    for _ in range(2):
        assert [each.value for each in read_and_kept(data, cache).elements] == [user("x" * 50_000), user("y")]
    assert len(cache) == 1


def same_objects(one: Sequence[Element], other: Sequence[Element]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def kept(cache: MessageCache, messages: list[Any]) -> Sequence[Element]:
    """The elements of messages that were read and kept."""
    return read_and_kept(body_bytes(messages), cache).elements


@st.composite
def turns(draw: st.DrawFn) -> list[Any]:
    """A long conversation as a client sends it: whole, or cut at either end, changed, shortened or forked within."""
    start = draw(st.sampled_from([0, 0, 0, 1, MANY]))
    sent = LONG[start:][: draw(st.sampled_from([len(LONG), 2 * MANY + 3, MANY - 1]))]
    at = draw(st.integers(0, len(LONG)))
    change = draw(st.sampled_from(["", "edit", "drop", "put", "twice", "fork"]))
    other = [user(f"other {i}") for i in range(2 * MANY)]
    changes = {
        "edit": [*sent[:at], other[0], *sent[at + 1 :]],
        "drop": [*sent[:at], *sent[at + 1 :]],
        "put": [*sent[:at], other[1], *sent[at:]],
        "twice": [*sent[:at], *sent],
        "fork": [*sent[:at], *other],
    }
    return changes.get(change, sent)


@SLOW
@given(
    st.lists(st.tuples(turns(), st.integers(1, 3), st.booleans()), min_size=1, max_size=5),
    st.sampled_from([MAX_BYTES, 4 * MANY * (ENTRY_BYTES + 40), 2 * MANY * (ENTRY_BYTES + 40)]),
)
def test_any_cache_size_reads_alike(sent: list[tuple[list[Any], int, bool]], most_bytes: int) -> None:
    cache = MessageCache(most_bytes)
    for messages, times, is_compact in sent:
        data = json.dumps({"messages": messages}, separators=(",", ":") if is_compact else None).encode()
        for _ in range(times):
            body = read_and_kept(data, cache)
            assert_same(body, read(data))
            assert cache.size == sum(each.cost for each in cache.kept.values()) <= most_bytes


@pytest.mark.parametrize("place", [1, 2, MANY, MANY + 1, MANY + 2, len(LONG) - 1])
def test_an_edit_costs_that_message_only(place: int) -> None:
    cache = MessageCache()
    before = kept(cache, LONG)
    edited = [*LONG[:place], user("edited"), *LONG[place + 1 :]]
    for _ in range(2):
        after = read_and_kept(body_bytes(edited), cache).elements
        assert [i for i in range(len(LONG)) if before[i] is not after[i]] == [place]
    assert same_objects(read(body_bytes(LONG), cache).elements, before)


def test_messages_in_use_are_not_evicted() -> None:
    cache = MessageCache(max_bytes=4 * MANY * (ENTRY_BYTES + 40))
    elements = kept(cache, LONG[: MANY + 1])
    for i in range(12 * MANY):
        read_and_kept(body_bytes([user(f"another {i}")]), cache)
        body = read_and_kept(body_bytes(LONG[: MANY + 1]), cache)
    assert same_objects(body.elements, elements)
    assert all(each.cost for each in elements)


def test_a_list_that_goes_on_costs_as_little_however_long_it_is() -> None:
    assert calls_of_a_turn(LONG * 6) < calls_of_a_turn(LONG) + 10
    # The body that is kept for it gives way first where there is no room.
    cache = MessageCache(max_bytes=2 * len(LONG) * (ENTRY_BYTES + 40))
    for number in range(4 * len(LONG)):
        read_and_kept(body_bytes(LONG), cache) if number < 3 else kept(cache, [user(f"another {number}")])
    assert all(element.run is None for element in cache.kept.values())


def calls_of_a_turn(messages: list[Any]) -> int:
    """The calls of functions, written in C or Python, for the fourth turn of a conversation that begins with these."""
    cache, calls = MessageCache(), 0

    def note(_frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    distinct = [user(f"{number} {each['content']}") for number, each in enumerate(messages)]
    for turn in range(4):
        data = body_bytes([*distinct, *(user(f"turn {number}") for number in range(2 * turn))])
        if turn == 3:
            sys.setprofile(note)
        try:
            read_and_kept(data, cache)
        finally:
            sys.setprofile(None)
    return calls
