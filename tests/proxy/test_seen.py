"""Messages that were seen before: found by their bytes, read once, forgotten in time, and never mistaken."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.nesting import DEEPEST
from proxy.seen import ENTRY_BYTES, Element, Seen
from proxy.wire import Body, read
from tests.proxy.test_wire import FEW, bodies

Made = tuple[list[tuple[str, str]], list[str], str]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def body_bytes(messages: list[Any], **members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **members}, ensure_ascii=False).encode()


def read_and_kept(data: bytes, seen: Seen) -> Body:
    body = read(data, seen)
    seen.keep(body.elements)
    return body


def assert_same(one: Body, other: Body) -> None:
    assert [each.data for each in one.elements] == [each.data for each in other.elements]
    assert [each.value for each in one.elements] == [each.value for each in other.elements]
    assert [each.role for each in one.elements] == [each.role for each in other.elements]
    assert list(one.members) == list(other.members)
    assert one.values == other.values
    for messages in (None, b"[7]"):
        for model in (None, "other"):
            if model is None or "model" in one.members:
                assert one.spliced(messages=messages, model=model) == other.spliced(messages=messages, model=model)


@FEW
@given(st.lists(bodies(), min_size=1, max_size=2), st.booleans())
def test_a_body_is_read_alike_whatever_was_seen_before(made: list[Made], with_extension: bool) -> None:
    seen = Seen()
    for _, _, text in [*made, *made]:
        whole = text.rstrip()[:-1] + ',"condenser":{"x":1}}' if with_extension else text
        assert_same(read_and_kept(whole.encode(), seen), read(whole.encode()))


@pytest.mark.parametrize("put", ["", "}", "]", '"', ",", "\\", "é", "[", "{", "\x00", "NaN", " "])
def test_what_is_refused_is_refused_in_the_same_words(put: str) -> None:
    text = '{"m":"é","messages":[ {"role":"user","content":"h\\"i"} , {"role":"tool","x":[1,{"y":"]"}]}],"n":[{}]}'
    seen = Seen()
    read_and_kept(text.encode(), seen)
    for place in range(len(text)):
        broken = (text[:place] + put + text[place + 1 :]).encode()
        assert_alike(broken, seen)


def assert_alike(data: bytes, seen: Seen) -> None:
    """What is read of a body, or why it is refused, does not depend on what was seen."""
    expected, refused = read_or_refused(data, None)
    found, refused_too = read_or_refused(data, seen)
    assert refused_too == refused
    if expected is not None and found is not None:
        assert_same(found, expected)


def read_or_refused(data: bytes, seen: Seen | None) -> tuple[Body | None, tuple[str, str | None]]:
    try:
        return read(data, seen), ("", None)
    except BadRequest as error:
        return None, (error.message, error.param)


def test_a_message_that_came_before_is_the_same_object_and_the_new_one_is_not() -> None:
    seen = Seen()
    first = read_and_kept(body_bytes([user("a"), user("b")]), seen)
    again = read_and_kept(body_bytes([user("a"), user("b"), user("c")]), seen)
    assert [one is other for one, other in zip(first.elements, again.elements, strict=False)] == [True, True]
    assert again.elements[2].value == user("c")


def test_a_message_behind_a_new_one_is_found_again() -> None:
    seen = Seen()
    first = read_and_kept(body_bytes([user("a"), user("b"), user("c"), user("d")]), seen)
    again = read(body_bytes([user("it is nine"), user("b"), user("c"), user("x"), user("d")]), seen)
    places = [first.elements.index(each) if each in first.elements else None for each in again.elements]
    assert places == [None, 1, 2, None, 3]


def test_the_spaces_between_messages_may_change() -> None:
    seen = Seen()
    first = read_and_kept(b'{"messages":[{"role":"user"},{"role":"tool"}]}', seen)
    again = read(b'{"messages": [ {"role":"user"} ,\n {"role":"tool"} ]}', seen)
    assert [one is other for one, other in zip(first.elements, again.elements, strict=True)] == [True, True]


def test_a_message_that_only_begins_like_one_is_another() -> None:
    seen = Seen()
    read_and_kept(b'{"messages":[{"role":"user","content":"one"}]}', seen)
    body = read(b'{"messages":[{"role":"user","content":"one "}]}', seen)
    assert body.elements[0].value["content"] == "one "


def test_an_array_of_that_name_elsewhere_is_not_taken_for_the_messages() -> None:
    data = json.dumps({"tools": [{"messages": [user("no")]}], "messages": [user("yes")]}).encode()
    seen = Seen()
    for _ in range(2):
        assert [each.value for each in read_and_kept(data, seen).elements] == [user("yes")]


def test_a_message_may_be_as_deep_as_the_body_may_and_no_deeper() -> None:
    def nested(levels: int) -> bytes:
        return b'{"messages":[{"role":"user","x":' + b"[" * levels + b"]" * levels + b"}]}"

    for levels in range(DEEPEST - 6, DEEPEST + 3):
        assert_alike(nested(levels), Seen())


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    seen = Seen(most_bytes=40 * (ENTRY_BYTES + 40))
    texts = [f"{number:04}" for number in range(100)]
    for text in texts:
        read_and_kept(body_bytes([user("rules"), user(text)]), seen)
        assert seen.size <= 40 * (ENTRY_BYTES + 40)
    kept = [text for text in texts if json.dumps(user(text)).encode() in seen._kept]
    assert kept == texts[-len(kept) :]
    assert len(kept) > 20
    assert json.dumps(user("rules")).encode() in seen._kept


def test_what_is_forgotten_is_not_kept_alive_by_the_message_before_it() -> None:
    seen = Seen(most_bytes=40 * (ENTRY_BYTES + 40))
    body = read_and_kept(body_bytes([user("rules"), user("old")]), seen)
    before = body.elements[0]
    for number in range(100):
        read_and_kept(body_bytes([user(str(number))]), seen)
        seen.keep([before])
    del body
    gc.collect()
    assert before.following is not None
    assert before.following() is None


def test_a_message_too_large_to_keep_is_read_all_the_same() -> None:
    seen = Seen(most_bytes=100_000)
    data = body_bytes([user("x" * 50_000), user("y")])
    for _ in range(2):
        assert [each.value for each in read_and_kept(data, seen).elements] == [user("x" * 50_000), user("y")]
    assert len(seen) == 1


def test_the_parsed_form_is_parsed_again_where_it_was_dropped() -> None:
    element = Element.of('{"role":"user","content":"\\ud800é"}')
    assert element.value == json.loads(element.raw)
    assert element.role == "user"
