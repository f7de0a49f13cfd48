"""The dialect of the Messages API: what it reads of messages, and what it writes."""

import sys
from typing import Any

import pytest
from hypothesis import given

from strategies.core.messages import Form, Reading, Role, ToolCall
from strategies.dialects.messages import Messages
from tests.support.messages_drafts import messages_conversations, request_of
from tests.support.messages_upstream import text, thinking, tool_use, web_search
from tests.support.strict_messages import refusal_of

Body = dict[str, Any]

dialect = Messages()

CALL: Body = {**tool_use("read", {"path": "a.py"}), "id": "t1"}
RESULT: Body = {"type": "tool_result", "tool_use_id": "t1", "content": "def f(): ..."}
SECOND: Body = {**RESULT, "tool_use_id": "t2"}
THOUGHT: Body = {**thinking("Hm."), "signature": "s"}
MARK: Body = {"cache_control": {"type": "ephemeral"}}
PICTURE: Body = {"type": "image", "source": {"type": "base64", "data": "x"}}


def user(*content: Body) -> Body:
    return {"role": "user", "content": list(content)}


def assistant(*content: Body) -> Body:
    return {"role": "assistant", "content": list(content)}


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ({"role": "user", "content": "hi"}, Role.USER),
        (user(text("hi")), Role.USER),
        (user(RESULT), Role.TOOL),
        (user(RESULT, text("Stop!")), Role.TOOL),
        (assistant(CALL), Role.ASSISTANT),
        ({"role": "system", "content": "Be brief."}, Role.SYSTEM),
        ({}, Role.USER),
    ],
)
def test_a_message_plays_a_part(message: Body, role: Role) -> None:
    assert dialect.read(message).role is role


def test_calls_and_results_are_read_by_their_ids() -> None:
    said = assistant(THOUGHT, text("I look."), CALL, {**CALL, "id": "t2", "input": {}}, *web_search("q"))
    calls = (ToolCall("t1", "read", '{"path": "a.py"}'), ToolCall("t2", "read", "{}"))
    assert dialect.read(said) == Reading(Role.ASSISTANT, "assistant", calls, is_signed=True)
    assert dialect.read(user(RESULT, SECOND, text("Stop!"))) == Reading(Role.TOOL, "user", (), ("t1", "t2"), True)
    assert dialect.read(user(CALL)).calls == ()


RUNNING: Body = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}
ENDED: Body = {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": {}}
INSIDE: Body = {**CALL, "caller": {"type": "code_execution_20260120", "tool_id": "s1"}}


@pytest.mark.parametrize(
    ("message", "opens", "closes"),
    [
        (assistant(RUNNING, INSIDE), ("s1",), ()),
        (assistant(RUNNING, CALL), ("s1",), ()),
        (assistant({**RUNNING, "type": "mcp_tool_use"}, CALL), ("s1",), ()),
        (assistant(INSIDE), ("s1",), ("s1",)),
        (assistant(ENDED, CALL), (), ("s1",)),
        (assistant({**ENDED, "type": "mcp_tool_result"}, CALL), (), ("s1",)),
        (assistant(INSIDE, ENDED), (), ("s1",)),
        (assistant(RUNNING, ENDED, *web_search("q")), (), ()),
        (assistant({**CALL, "caller": {"type": "direct"}}, {"type": "compaction", "content": "x"}), (), ()),
        (assistant({"type": "server_tool_use"}, {"type": "x_tool_result"}, {"type": None}), (), ()),
        (user(RESULT), (), ()),
    ],
)
def test_a_server_tool_that_ends_in_a_later_message_is_read_by_its_id(
    message: Body, opens: tuple[str, ...], closes: tuple[str, ...]
) -> None:
    read = dialect.read(message)
    assert (read.opens, read.closes) == (opens, closes)


def test_the_text_has_results_but_neither_calls_nor_thoughts() -> None:
    assert dialect.text(assistant(THOUGHT, text("I look."), CALL)) == "I look."
    assert dialect.text(user({**RESULT, "content": [text("one"), PICTURE]}, text("Stop!"))) == "one\n[image]\nStop!"
    assert dialect.text(user({"type": "tool_result", "tool_use_id": "t1"})) == ""
    assert dialect.text(assistant(*web_search("q"))) == "[server_tool_use]\n[web_search_tool_result]"


def test_pictures_are_counted_in_results_too() -> None:
    page = {"type": "document", "source": {"type": "file", "file_id": "f"}}
    assert dialect.pictures(user({**RESULT, "content": [text("one"), PICTURE]}, PICTURE, page, text("Stop!"))) == 2
    assert dialect.pictures(assistant(THOUGHT, CALL, *web_search("q"))) == 0


SAME: list[tuple[Body, Body]] = [
    ({"role": "user", "content": "hi"}, user({**text("hi"), **MARK, "citations": None})),
    (assistant(THOUGHT, text("I look.")), assistant(text("I look."))),
    (assistant(CALL), assistant({**CALL, "caller": {"type": "direct"}, **MARK})),
    (user(RESULT), user({**RESULT, "content": [{**text("def f(): ..."), **MARK}], "is_error": False})),
    (assistant({**CALL, "input": {"a": 1, "b": 2.0}}), assistant({**CALL, "input": {"b": 2, "a": 1.0}})),
    (user({**RESULT, "content": ""}), user({key: value for key, value in RESULT.items() if key != "content"})),
]
OTHER: list[tuple[Body, Body]] = [
    ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}),
    (user(RESULT), user(SECOND)),
    (user(RESULT), user({**RESULT, "is_error": True})),
    (user(RESULT, text("x")), user({**RESULT, "content": [text("def f(): ..."), text("x")]})),
    (assistant(CALL), assistant({**CALL, "input": {"path": "b.py"}})),
    (user(text("a"), text("b")), user(text("a"))),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_copies_of_a_message_have_one_digest(one: Body, other: Body) -> None:
    assert list(dialect.digest_fields(one)) == list(dialect.digest_fields(other))


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_different_messages_have_different_digests(one: Body, other: Body) -> None:
    assert list(dialect.digest_fields(one)) != list(dialect.digest_fields(other))


def test_messages_of_ours_have_one_text_and_no_name() -> None:
    assert dialect.user("hi") == user(text("hi"))
    assert dialect.assistant("hi") == assistant(text("hi"))
    assert dialect.assistant("hi", "memory") == user(text("hi"))
    assert dialect.text(dialect.assistant(""))


def test_each_result_has_a_text_of_its_own() -> None:
    shown = user({**RESULT, "content": [text("one"), PICTURE]}, {**SECOND, **MARK}, {**text("Stop!"), **MARK})
    assert dialect.texts(shown) == ["one\n[image]", "def f(): ..."]
    same = user({**RESULT, "content": [text("one"), PICTURE]}, SECOND, text("Stop!"))
    assert dialect.with_texts(shown, dialect.texts(shown)) == same
    cut = user({**RESULT, "content": "o"}, {**SECOND, "content": "d"}, text("Stop!"))
    assert dialect.with_texts(shown, ["o", "d"]) == cut


def test_a_message_without_results_is_one_text() -> None:
    assert dialect.texts(user(text("a"), PICTURE, text("b"))) == ["a\n[image]\nb"]
    assert dialect.with_texts(user(text("a"), PICTURE, text("b")), ["cut"]) == user(text("cut"))


@pytest.mark.parametrize(
    ("message", "is_plain"),
    [
        ({"role": "user", "content": "hi"}, True),
        (user(text("hi")), True),
        (user(RESULT), True),
        (user({**RESULT, "content": [text("hi")]}), True),
        (user(RESULT, SECOND), False),
        (user(RESULT, text("Stop!")), False),
        (user({**RESULT, "content": [text("hi"), PICTURE]}), False),
        (user(PICTURE), False),
        (user({**RESULT, "content": ""}), False),
    ],
)
def test_a_plain_message_is_framing_and_one_text(message: Body, is_plain: bool) -> None:
    assert dialect.is_plain(message) is is_plain


def test_arguments_are_rewritten_as_objects_and_lose_their_markers() -> None:
    said = assistant(THOUGHT, {**CALL, **MARK}, {**CALL, "id": "t2"})
    written = dialect.with_arguments(said, lambda call: {"path": "[…]"} if call.id == "t1" else None)
    assert written == assistant(THOUGHT, {**CALL, "input": {"path": "[…]"}}, {**CALL, "id": "t2"})
    assert dialect.with_arguments(said, lambda call: None) is said


def test_thinking_is_left_out_whole() -> None:
    assert dialect.unbound(assistant(THOUGHT, CALL)) == assistant(CALL)
    assert dialect.unbound(assistant(THOUGHT)) == dialect.assistant("")
    bare = assistant(CALL)
    assert dialect.unbound(bare) is bare


def test_merged_messages_have_their_results_first() -> None:
    assert dialect.merged(user(text("a")), user(RESULT, text("b"))) == user(RESULT, text("a"), text("b"))
    assert dialect.merged({"role": "user", "content": "a"}, user(text("b"))) == user(text("a"), text("b"))


def test_only_what_is_empty_fits_no_form() -> None:
    assert dialect.fitted(user(text("a")), Form()) == user(text("a"))
    assert dialect.fitted(assistant(), Form()) is None
    assert dialect.as_user(assistant(text("a"))) == user(text("a"))


# -- properties ----------------------------------------------------------------------------------------------------


@given(messages_conversations())
def test_generated_conversations_are_taken(messages: list[Body]) -> None:
    assert refusal_of(request_of(messages)) == ""


@given(messages_conversations())
def test_what_is_rewritten_is_taken(messages: list[Body]) -> None:
    written = [dialect.with_arguments(each, lambda call: {"left": "out"}) for each in messages]
    masked = [dialect.with_texts(each, ["[left out]"] * len(dialect.texts(each))) for each in written if results(each)]
    whole = [masked.pop(0) if results(each) else each for each in written]
    assert refusal_of(request_of([dialect.unbound(each) for each in whole])) == ""


def results(message: Any) -> bool:
    return dialect.read(message).is_result


@given(messages_conversations())
def test_to_write_the_texts_of_results_again_changes_nothing(messages: list[Body]) -> None:
    for each in filter(results, messages):
        again = dialect.with_texts(each, dialect.texts(each))
        assert list(dialect.digest_fields(again)) == list(dialect.digest_fields(each))


def calls_to_read(depth: int) -> int:
    """The Python calls that reading a result takes, which has results within results to this depth."""
    content: list[object] = [{}] * 200
    for _ in range(depth):
        content = [{"type": "tool_result", "tool_use_id": "t", "content": content}]
    value, calls = {"role": "user", "content": content}, 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        dialect.text(value), dialect.texts(value), dialect.pictures(value), list(dialect.digest_fields(value))
    finally:
        sys.setprofile(None)
    return calls


def test_results_within_results_cost_no_more_with_depth() -> None:
    calls_to_read(1)  # fills what `isinstance` remembers of types
    few, many = calls_to_read(30), calls_to_read(60)
    assert many < 500
    assert abs(many - few) < 20  # a garbage collection may call back


def test_words_beside_a_result_leave_what_the_tool_printed_alone() -> None:
    result: Body = {**RESULT, "content": "token book took 3 errors; exit code: ok"}
    for beside in ("ok", "o", "took 3"):
        value = user(result, text(beside), text("and more"))
        assert dialect.results_text(value) == "token book took 3 errors; exit code: ok"
        assert dialect.words_beside(value) == f"{beside}\nand more"
    assert dialect.results_text(user(text("Traceback"))) == "Traceback"
