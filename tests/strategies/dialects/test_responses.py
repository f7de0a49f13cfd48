"""The dialect of the Responses API: what it reads of items, and what it writes."""

from typing import Any

import pytest
from hypothesis import given

from strategies.core.messages import Form, Reading, Role, ToolCall
from strategies.dialects.responses import Responses
from tests.support.responses_drafts import request_of, responses_conversations
from tests.support.responses_upstream import custom_tool_call, function_call, message, reasoning, web_search_call
from tests.support.strict_responses import mismatched, refusal_of

Body = dict[str, Any]

dialect = Responses()

CALL: Body = {"id": "fc_1", "call_id": "c1", **function_call("read", {"path": "a.py"})}
OUTPUT: Body = {"type": "function_call_output", "call_id": "c1", "output": "def f(): ..."}
SHELL: Body = {"type": "local_shell_call", "id": "lsh", "call_id": "c1", "action": {"command": ["ls"]}}
PICTURED: Body = {**OUTPUT, "output": [{"type": "input_text", "text": "x"}, {"type": "input_image"}]}
THOUGHT: Body = reasoning("Hm.")
USER: Body = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("item", "role"),
    [
        (USER, Role.USER),
        ({"type": "message", "role": "developer", "content": "Be brief."}, Role.SYSTEM),
        (message("Hm."), Role.ASSISTANT),
        (reasoning("Hm."), Role.ASSISTANT),
        (CALL, Role.ASSISTANT),
        (OUTPUT, Role.TOOL),
        (web_search_call("q"), Role.ASSISTANT),
        ({"type": "additional_tools", "role": "developer", "tools": []}, Role.SYSTEM),
        ({"type": "new_call_output", "call_id": "c"}, Role.TOOL),
        ({"type": "new_thing"}, Role.ASSISTANT),
        ({}, Role.USER),
    ],
)
def test_an_item_plays_a_part(item: Body, role: Role) -> None:
    assert dialect.read(item).role is role


@pytest.mark.parametrize(
    ("call", "read", "output"),
    [
        (CALL, ToolCall("c1", "read", '{"path": "a.py"}'), OUTPUT),
        (
            {"call_id": "c2", **custom_tool_call("patch", "+ x")},
            ToolCall("c2", "patch", "+ x"),
            {"type": "custom_tool_call_output", "call_id": "c2", "output": ""},
        ),
        (
            SHELL,
            ToolCall("c1", "local_shell_call", '{"command": ["ls"]}'),
            {"type": "local_shell_call_output", "id": "c1", "output": ""},
        ),
        (
            {"type": "mcp_approval_request", "id": "ar", "name": "n", "arguments": "{}", "server_label": "s"},
            ToolCall("ar", "n", "{}"),
            {"type": "mcp_approval_response", "approval_request_id": "ar", "approve": True},
        ),
    ],
)
def test_calls_and_outputs_are_read_by_their_ids(call: Body, read: ToolCall, output: Body) -> None:
    assert dialect.read(call) == Reading(Role.ASSISTANT, "assistant", (read,), opens=(read.id,))
    assert dialect.read(output) == Reading(Role.TOOL, "tool", (), (read.id,), True, closes=(read.id,))


def test_pairs_of_unknown_types_and_calls_inside_of_a_program_are_read_by_their_ids() -> None:
    assert dialect.read({"type": "new_call", "call_id": "n1"}).opens == ("n1",)
    assert dialect.read({"type": "new_call_output", "call_id": "n1"}).closes == ("n1",)
    caller = {"caller": {"type": "program", "caller_id": "p1"}}
    nested, output = dialect.read({**CALL, **caller}), dialect.read({**OUTPUT, **caller})
    assert (nested.opens, nested.closes) == (("p1", "c1"), ("p1",))
    assert (output.opens, output.closes) == (("p1",), ("p1", "c1"))
    assert dialect.read({"type": "mcp_call", "id": "m1"}).opens == ()


def test_the_text_has_outputs_but_neither_calls_nor_reasoning() -> None:
    assert dialect.text(message("Hm.")) == "Hm."
    assert dialect.text(USER) == "hi"
    assert dialect.text(OUTPUT) == "def f(): ..."
    assert dialect.text(PICTURED) == "x\n[input_image]"
    assert dialect.text(CALL) == dialect.text(reasoning("Hm.")) == ""
    assert dialect.text(web_search_call("q")) == "[web_search_call]"


def test_pictures_are_counted_wherever_they_stand() -> None:
    assert dialect.pictures(PICTURED) == 1
    assert dialect.pictures({"role": "user", "content": [{"type": "input_file"}, {"type": "input_image"}]}) == 1
    screen = {"type": "computer_screenshot", "image_url": "data:image/png;base64,"}
    assert dialect.pictures({"type": "computer_call_output", "call_id": "c", "output": screen}) == 1
    assert dialect.pictures(CALL) == dialect.pictures(USER) == dialect.pictures(THOUGHT) == 0


SAME: list[tuple[Body, Body]] = [
    (USER, {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
    (message("Hm."), {"id": "msg_2", "role": "assistant", "content": "Hm.", "phase": "commentary"}),
    (CALL, {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path":"a.py"}'}),
    (reasoning("Hm."), {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x", "content": None}),
    (OUTPUT, {**OUTPUT, "id": "fco_1", "output": [{"type": "input_text", "text": "def f(): ..."}]}),
    (web_search_call("q"), {**web_search_call("q"), "id": "ws_1", "status": None}),
]
OTHER: list[tuple[Body, Body]] = [
    (USER, {**USER, "role": "developer"}),
    (CALL, {**CALL, "call_id": "c2"}),
    (CALL, {**CALL, "name": "write"}),
    (OUTPUT, {**OUTPUT, "output": "else"}),
    (web_search_call("q"), web_search_call("r")),
    ({"type": "item_reference", "id": "a"}, {"type": "item_reference", "id": "b"}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_copies_of_an_item_have_one_digest(one: Body, other: Body) -> None:
    assert list(dialect.digest_fields(one)) == list(dialect.digest_fields(other))


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_different_items_have_different_digests(one: Body, other: Body) -> None:
    assert list(dialect.digest_fields(one)) != list(dialect.digest_fields(other))


def test_messages_of_ours_have_one_text_and_no_name() -> None:
    assert dialect.user("hi") == {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert dialect.assistant("hi", "memory") == dialect.user("hi")
    assert dialect.as_user(message("hi")) == dialect.user("hi")
    assert dialect.text(dialect.assistant(""))


def test_outputs_that_are_texts_are_rewritten() -> None:
    assert dialect.with_texts(OUTPUT, ["[left out]"]) == {**OUTPUT, "output": "[left out]"}
    assert dialect.with_texts(USER, ["cut"]) == {**USER, "content": "cut"}
    screen = {"type": "computer_call_output", "call_id": "c1", "output": {"type": "computer_screenshot"}}
    for kept in (screen, CALL, reasoning("Hm."), {"type": "new_call_output", "output": "x"}, {"type": "new_thing"}):
        assert dialect.with_texts(kept, ["[left out]"]) is kept
    assert dialect.with_texts(PICTURED, dialect.texts(PICTURED)) is PICTURED


def test_only_arguments_of_functions_are_rewritten() -> None:
    assert dialect.with_arguments(CALL, lambda call: {"path": "[…]"}) == {**CALL, "arguments": '{"path": "[…]"}'}
    assert dialect.with_arguments(CALL, lambda call: None) is CALL
    assert dialect.with_arguments(SHELL, lambda call: {}) is SHELL


@pytest.mark.parametrize(
    ("item", "is_plain"),
    [(USER, True), (message("Hm."), True), (OUTPUT, True), (PICTURED, False), (CALL, False), (reasoning("Hm."), False)],
)
def test_a_plain_item_is_framing_and_one_text(item: Body, is_plain: bool) -> None:
    assert dialect.is_plain(item) is is_plain


def test_reasoning_is_left_to_the_server() -> None:
    assert dialect.unbound(THOUGHT) is THOUGHT


def test_merged_messages_have_the_parts_of_both() -> None:
    both = dialect.merged(USER, {"role": "user", "content": [{"type": "input_image"}]})
    assert both["content"] == [{"type": "input_text", "text": "hi"}, {"type": "input_image"}]
    assert dialect.fitted({"type": "message", "role": "user", "content": ""}, Form()) is None
    assert dialect.fitted(CALL, Form()) is CALL


# -- properties ----------------------------------------------------------------------------------------------------


@given(responses_conversations())
def test_generated_conversations_are_taken_whole(items: list[Body]) -> None:
    assert refusal_of(request_of(items)) is None
    assert mismatched(request_of(items), {}) == []


@given(responses_conversations())
def test_what_is_rewritten_is_taken(items: list[Body]) -> None:
    called = [dialect.with_arguments(each, lambda call: {"left": "out"}) for each in items]
    written = [dialect.with_texts(each, ["[left out]"]) if dialect.read(each).is_result else each for each in called]
    assert refusal_of(request_of(written)) is None


@given(responses_conversations())
def test_to_write_the_texts_again_changes_nothing(items: list[Body]) -> None:
    assert all(dialect.with_texts(each, dialect.texts(each)) is each for each in items)
