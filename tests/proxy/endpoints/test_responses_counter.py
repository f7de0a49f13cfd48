"""The formula of the Responses API counts what the model sees, prices media, and takes whatever a client sends."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given

from proxy.endpoints.chat import ChatCounter
from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING
from proxy.endpoints.responses import ResponsesCounter
from proxy.tokens import media
from proxy.tokens.counter import Counted
from tests.proxy.endpoints.test_messages_counter import JSON
from tests.proxy.tokens.test_images import png
from tests.support.responses_drafts import responses_conversations
from tests.support.responses_upstream import custom_tool_call, function_call, message

BY_WORD = ResponsesCounter("any", lambda text: len(text.split()), media.media_prices("gpt-4o"))


def tokens(item: dict[str, Any]) -> int:
    return BY_WORD.message(item) - PER_MESSAGE


def counted(item: dict[str, Any]) -> Counted:
    count = BY_WORD.counted(item)
    return count._replace(tokens=count.tokens - PER_MESSAGE)


def test_a_text_costs_the_same_as_one_part_of_it() -> None:
    assert tokens({"role": "user", "content": "one two"}) == 2
    assert tokens({"role": "user", "content": [{"type": "input_text", "text": "one two"}]}) == 2
    assert tokens(message("one two")) == 2


def test_calls_and_outputs_cost_their_texts() -> None:
    assert tokens({"call_id": "c", **function_call("read", {"path": "a"})}) == 3
    assert tokens({"call_id": "c", **custom_tool_call("patch", "+ a")}) == 3
    assert tokens({"type": "function_call_output", "call_id": "c", "output": "one two"}) == 2


def test_reasoning_counts_as_text_unless_it_is_encrypted() -> None:
    text = [{"type": "reasoning_text", "text": "one two"}]
    assert counted({"type": "reasoning", "id": "rs_1", "summary": [], "content": text}) == (2, False)
    summary = [{"type": "summary_text", "text": "a long summary"}]
    assert counted({"type": "reasoning", "summary": summary}) == (3, False)
    assert counted({"type": "reasoning", "summary": summary, "encrypted_content": "x" * 600}) == (0, True)
    assert counted({"type": "reasoning", "id": "rs_1", "summary": []}) == (0, True)
    assert counted({"type": "compaction", "encrypted_content": "x" * 600}) == (0, True)


PICTURE = "data:image/png;base64," + base64.b64encode(png(512, 512)).decode()


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": PICTURE}]},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": PICTURE}},
        {"type": "image_generation_call", "result": PICTURE.partition(",")[2]},
        {"type": "code_interpreter_call", "code": "", "outputs": [{"type": "image", "url": PICTURE}]},
    ],
)
def test_a_picture_has_its_price_wherever_it_stands(item: dict[str, Any]) -> None:
    assert counted(item) == (255, False)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "image_generation_call", "id": "ig_1", "status": "completed"},
        {"type": "image_generation_call", "result": "A" * 90_000},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}},
        {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
        {"type": "new_thing", "text": "one two", "blob": "A" * 90_000},
        {"type": "item_reference", "id": "msg_1"},
    ],
)
def test_what_has_no_price_counts_nothing_and_is_told(item: dict[str, Any]) -> None:
    assert counted(item) == (0, True)


def test_calls_of_the_vendors_tools_count_as_text() -> None:
    run = {"type": "code_interpreter_call", "code": "one two", "outputs": [{"type": "logs", "logs": "three"}]}
    assert counted(run) == (3, False)
    shell = {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "one two three", "stderr": ""}]}
    assert 3 <= counted(shell).tokens < 12
    listed = {"type": "mcp_list_tools", "tools": [{"name": "find", "description": "one two"}]}
    assert not counted(listed).unpriced
    loaded = {"type": "tool_search_output", "tools": [{"type": "function", "name": "late", "description": "one two"}]}
    assert counted(loaded).tokens > 3


def test_instructions_and_tools_cost_what_they_cost_in_chat() -> None:
    shape = {"name": "read", "description": "Reads a file", "parameters": {"type": "object", "properties": {}}}
    chat = ChatCounter("any", lambda text: len(text.split()), media.media_prices("gpt-4o"))
    in_chat = chat.overhead({"tools": [{"type": "function", "function": shape}]})
    assert BY_WORD.overhead({"tools": [{"type": "function", **shape}]}) == in_chat
    assert BY_WORD.overhead({}) == REPLY_PRIMING
    assert BY_WORD.overhead({"instructions": "Be brief."}) == REPLY_PRIMING + PER_MESSAGE + 2


@given(JSON)
def test_nothing_that_a_client_sends_raises(value: Any) -> None:
    for kind in ("message", "function_call", "function_call_output", "new_thing"):
        item = {"type": kind, "content": value, "output": value, "arguments": value}
        assert BY_WORD.message(item) >= PER_MESSAGE
        assert BY_WORD.chars(item) > 0
    assert BY_WORD.overhead({"instructions": value, "tools": value, "text": value}) >= REPLY_PRIMING


@given(responses_conversations(at_most=8))
def test_each_item_of_a_conversation_costs_something(items: list[dict[str, Any]]) -> None:
    assert all(BY_WORD.message(item) >= PER_MESSAGE and BY_WORD.chars(item) > 0 for item in items)
