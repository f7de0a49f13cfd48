"""The formula of the Responses API counts what the model sees, prices media, and takes whatever a client sends."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from proxy.endpoints.chat.counter import ChatCounter
from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING
from proxy.endpoints.responses.counter import ResponsesCounter
from proxy.tokens import images
from tests.proxy.endpoints.test_messages_counter import JSON
from tests.support.responses_drafts import responses_conversations
from tests.support.responses_upstream import custom_tool_call, function_call, message, reasoning

BY_WORD = ResponsesCounter("any", lambda text: len(text.split()), images.DEFAULT)


def tokens(item: dict[str, Any]) -> int:
    return BY_WORD.message(item) - PER_MESSAGE


def test_a_text_costs_the_same_as_one_part_of_it() -> None:
    assert tokens({"role": "user", "content": "one two"}) == 2
    assert tokens({"role": "user", "content": [{"type": "input_text", "text": "one two"}]}) == 2
    assert tokens(message("one two")) == 2


def test_calls_and_outputs_cost_their_texts() -> None:
    assert tokens({"call_id": "c", **function_call("read", {"path": "a"})}) == 3
    assert tokens({"call_id": "c", **custom_tool_call("patch", "+ a")}) == 3
    assert tokens({"type": "function_call_output", "call_id": "c", "output": "one two"}) == 2


def test_reasoning_costs_what_its_length_tells_and_not_its_summary() -> None:
    assert tokens({**reasoning("a long summary"), "encrypted_content": "x" * 600}) == 100
    assert tokens(reasoning("a long summary")) == 0


def test_pictures_and_files_are_priced_and_never_tokenized() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 4_000, "detail": "low"}
    assert tokens({"role": "user", "content": [picture]}) == images.DEFAULT.tokens(None, "low")
    page = {"type": "input_file", "filename": "a.pdf", "file_data": "A" * 64_000}
    assert tokens({"role": "user", "content": [page]}) == 1_502


def test_instructions_and_tools_cost_what_they_cost_in_chat() -> None:
    shape = {"name": "read", "description": "Reads a file", "parameters": {"type": "object", "properties": {}}}
    chat = ChatCounter("any", lambda text: len(text.split()), images.DEFAULT)
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
