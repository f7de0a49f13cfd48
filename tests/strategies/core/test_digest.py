"""Which messages count as the same message."""

import json
from typing import Any

import pytest

from strategies.core.messages import ROOT, canonical_arguments, chain, link, message_digest
from strategies.core.paths import parsed
from strategies.dialects.chat import CHAT, call_fields
from tests.support.transcripts import assistant, call, tool, transcript_of, user

CALL = call("c1", "bash", '{"a": 1, "b": [1, 2]}')

EQUAL: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("null and empty content", assistant(None, CALL), assistant("", CALL)),
    ("empty text and empty list", user(""), user([])),
    ("no content and null", {"role": "assistant", "tool_calls": [CALL]}, assistant(None, CALL)),
    ("one empty text part and empty text", user([{"type": "text", "text": ""}]), user("")),
    ("text and one text part", user("hello"), user([{"type": "text", "text": "hello"}])),
    (
        "cache marks on a part",
        user([{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]),
        user("hello"),
    ),
    (
        "cache marks among parts",
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]),
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
    ),
    ("spaces in arguments", assistant(None, CALL), assistant(None, call("c1", "bash", '{"a":1,"b":[1,2]}'))),
    ("order in arguments", assistant(None, CALL), assistant(None, call("c1", "bash", '{"b":[1,2],"a":1}'))),
    (
        "escapes in arguments",
        assistant(None, call("c", "f", '{"a":"é"}')),
        assistant(None, call("c", "f", '{"a":"\\u00e9"}')),
    ),
    ("no arguments and an empty object", assistant(None, call("c", "f", "")), assistant(None, call("c", "f", "{}"))),
    (
        "a whole number as JavaScript writes it",
        assistant(None, call("c", "f", '{"a":1.0}')),
        assistant(None, call("c", "f", '{"a":1}')),
    ),
    ("no calls and an empty list of them", assistant("hi"), {**assistant("hi"), "tool_calls": []}),
    ("no calls and null", assistant("hi"), {**assistant("hi"), "tool_calls": None, "function_call": None}),
    (
        "members of the reply that SDKs send back or not",
        assistant("hi"),
        {**assistant("hi"), "refusal": None, "annotations": [], "reasoning_content": "hm", "audio": None},
    ),
    ("an assistant's name", assistant("hi"), {**assistant("hi"), "name": "researcher"}),
    ("an index in a call", assistant(None, CALL), assistant(None, {**CALL, "index": 0})),
    ("role function and role tool", {"role": "function", "content": "x"}, {"role": "tool", "content": "x"}),
    (
        "arguments as an object, as some servers give them",
        assistant(None, {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}),
        assistant(None, call("c", "f", '{"a": 1}')),
    ),
]

DIFFERENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("role", user("a"), assistant("a")),
    ("text", user("a"), user("b")),
    ("spaces in the text", user("a"), user("a ")),
    ("name", user("a"), {**user("a"), "name": "Ann"}),
    ("the call's id", assistant(None, call("c1")), assistant(None, call("c2"))),
    ("the tool's name", assistant(None, call("c1", "f")), assistant(None, call("c1", "g"))),
    ("a value in arguments", assistant(None, call("c", "f", '{"a":1}')), assistant(None, call("c", "f", '{"a":2}'))),
    ("a number and its text", assistant(None, call("c", "f", '{"a":1}')), assistant(None, call("c", "f", '{"a":"1"}'))),
    ("arguments that are no JSON", assistant(None, call("c", "f", "a b")), assistant(None, call("c", "f", "a  b"))),
    ("the order of calls", assistant(None, call("a"), call("b")), assistant(None, call("b"), call("a"))),
    ("the result's call", tool("c1", "x"), tool("c2", "x")),
    ("the number of parts", user([{"type": "text", "text": "ab"}]), user([{"type": "text", "text": "a"}] * 2)),
    (
        "a picture's address",
        user([{"type": "image_url", "image_url": {"url": "a"}}]),
        user([{"type": "image_url", "image_url": {"url": "b"}}]),
    ),
    ("a call and its name as text", assistant("f", CALL), assistant("f")),
]


@pytest.mark.parametrize(("what", "one", "other"), EQUAL, ids=[case[0] for case in EQUAL])
def test_what_a_client_may_rewrite_changes_no_digest(what: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert message_digest(one, CHAT) == message_digest(other, CHAT)


@pytest.mark.parametrize(("what", "one", "other"), DIFFERENT, ids=[case[0] for case in DIFFERENT])
def test_what_changes_the_meaning_changes_the_digest(what: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert message_digest(one, CHAT) != message_digest(other, CHAT)


def test_a_function_call_is_a_call_without_an_id() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    assert call_fields(old) == [("", "f", '{"a": 1}')]
    assert message_digest(old, CHAT) == message_digest(assistant(None, call("", "f", '{"a":1}')), CHAT)


def test_a_custom_call_is_read_with_its_input() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    assert call_fields(assistant(None, custom)) == [("c1", "patch", "*** Begin")]


@pytest.mark.parametrize("calls", ["none", [None, 3, "x"], [{"id": "c"}], {"id": "c"}, 7])
def test_calls_of_a_wrong_shape_are_read_as_far_as_they_go(calls: object) -> None:
    body = {"role": "assistant", "content": "", "tool_calls": calls}
    assert len(message_digest(body, CHAT)) == 16
    assert all(fields == ("c", "", "") for fields in call_fields(body))


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, "1" * 101, "{", "NaN", "a b"])
def test_arguments_that_cannot_be_parsed_stand_as_they_are(text: str) -> None:
    assert canonical_arguments(text) == text


def test_arguments_of_very_many_values_stand_as_they_are() -> None:
    text = json.dumps({"a": [{}] * 25_000})
    assert canonical_arguments(text) == text
    assert parsed(text) is None


def test_a_long_text_in_arguments_is_one_value() -> None:
    text = json.dumps({"path": "a.csv", "content": "{1, [2" * 25_000})
    assert canonical_arguments(text) == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert parsed(text) == json.loads(text)


def test_a_short_number_does_not_become_a_long_one() -> None:
    text = "[" + ",".join(["1e308"] * 1_000) + "]"
    assert len(canonical_arguments(text)) < 2 * len(text)
    assert canonical_arguments("[1e20]") == canonical_arguments("[100000000000000000000.0]")


def test_lone_surrogates_have_a_digest() -> None:
    assert message_digest(user("\ud800"), CHAT) != message_digest(user("\ud801"), CHAT)


def test_the_chain_names_the_whole_history_before_a_message() -> None:
    a, b = message_digest(user("a"), CHAT), message_digest(user("b"), CHAT)
    assert chain([a, b]) == [link(ROOT, a), link(link(ROOT, a), b)]
    assert chain([b, b])[1] != chain([a, b])[1]
    assert chain([b], root=chain([a])[-1]) == chain([a, b])[1:]
    assert chain([]) == []


def test_system_messages_stand_outside_the_chain() -> None:
    plain = [user("a"), assistant("b")]
    dated = [
        {"role": "system", "content": "It is noon."},
        plain[0],
        {"role": "developer", "content": "Be brief."},
        plain[1],
    ]
    assert transcript_of(plain).digests == transcript_of(dated).digests
