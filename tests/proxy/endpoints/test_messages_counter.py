"""The formula of the Messages API counts what the model sees, prices media, and takes whatever a client sends."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING
from proxy.endpoints.messages import PER_CALL, TOOLS_PROMPT, MessagesCounter
from proxy.tokens import media
from proxy.tokens.counter import Counted
from tests.support.messages_drafts import messages_conversations

BY_WORD = MessagesCounter("any", lambda text: len(text.split()), media.media_prices("claude-sonnet-4-5"))
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


def picture(width: int, height: int) -> dict[str, Any]:
    data = base64.b64encode(PNG + width.to_bytes(4, "big") + height.to_bytes(4, "big")).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def tokens(*content: Any) -> int:
    return BY_WORD.message({"role": "user", "content": list(content)}) - PER_MESSAGE


def test_a_text_costs_the_same_as_one_block_of_it() -> None:
    assert BY_WORD.message({"role": "user", "content": "one two"}) == PER_MESSAGE + 2
    assert tokens({"type": "text", "text": "one two", "cache_control": {"type": "ephemeral"}}) == 2


def test_calls_and_results_cost_their_texts_and_a_frame() -> None:
    assert tokens({"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"a": "b c"}}) == PER_CALL + 3
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "one two"}]}
    assert tokens(result) == PER_CALL + 2


def counted(*content: Any) -> Counted:
    count = BY_WORD.counted({"role": "user", "content": list(content)})
    return count._replace(tokens=count.tokens - PER_MESSAGE)


def test_thinking_costs_its_text_and_is_unknown_without_one() -> None:
    assert counted({"type": "thinking", "thinking": "one two", "signature": "x" * 600}) == (2, False)
    assert counted({"type": "thinking", "thinking": "", "signature": "x" * 600}) == (0, True)
    assert counted({"type": "redacted_thinking", "data": "x" * 600}) == (0, True)


@pytest.mark.parametrize(("size", "cost"), [((750, 100), 108), ((4_000, 400), 336), ((3_000, 3_000), 1_568)])
def test_pictures_are_priced_by_their_size(size: tuple[int, int], cost: int) -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": [picture(*size)]}
    assert (tokens(picture(*size)), tokens(result)) == (cost, PER_CALL + cost)


def test_media_are_priced_and_never_tokenized() -> None:
    far = {"type": "image", "source": {"type": "url", "url": "https://moss.example"}}
    scan = base64.b64encode(b"%PDF-1.4 1 0 obj <</Type /Page>> endobj" + b"x" * 9_000).decode()
    page = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": scan}}
    assert counted(page) == (1_500, False)
    fetched = {"type": "web_fetch_result", "url": "https://moss.example", "content": page}
    assert counted({"type": "web_fetch_tool_result", "tool_use_id": "a", "content": fetched}) == (
        PER_CALL + 1_500,
        False,
    )
    for unknown in (far, {"type": "document", "source": {"type": "file", "file_id": "f"}}, {"type": "novel", "x": "y"}):
        assert counted(unknown) == (0, True)
    plain = {"type": "document", "title": "a title", "source": {"type": "text", "data": "one two"}}
    assert counted(plain) == (4, False)


def test_what_the_vendors_tools_have_found_counts_as_text() -> None:
    found = {"type": "web_search_result", "title": "one two", "encrypted_content": "x" * 9_000}
    count = counted({"type": "web_search_tool_result", "tool_use_id": "a", "content": [found]})
    assert PER_CALL + 2 <= count.tokens < PER_CALL + 20
    assert count.unpriced
    names = {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "a"}],
    }
    assert not counted({"type": "tool_search_tool_result", "tool_use_id": "a", "content": names}).unpriced


def test_the_system_prompt_and_tools_cost_what_stands_outside_of_the_list() -> None:
    system = [{"type": "text", "text": "Be brief."}]
    assert BY_WORD.overhead({}) == REPLY_PRIMING
    assert BY_WORD.overhead({"system": "Be brief."}) == BY_WORD.overhead({"system": system}) == REPLY_PRIMING + 2
    tool = {"name": "read", "description": "Reads a file", "input_schema": {"type": "object"}}
    assert BY_WORD.overhead({"tools": [tool]}) == REPLY_PRIMING + TOOLS_PROMPT + 3
    marked = {**tool, "cache_control": {"type": "ephemeral"}}
    assert BY_WORD.overhead({"tools": [marked]}) == BY_WORD.overhead({"tools": [tool]})


KEYS = st.sampled_from(["type", "text", "source", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_nothing_that_a_client_sends_raises(content: Any) -> None:
    body = {"role": "user", "content": content}
    assert BY_WORD.message(body) >= PER_MESSAGE
    assert BY_WORD.chars(body) > 0
    assert BY_WORD.overhead({"system": content, "tools": content, "output_config": content}) >= REPLY_PRIMING


@given(messages_conversations(at_most=8))
def test_a_message_of_a_conversation_costs_about_its_text(messages: list[dict[str, Any]]) -> None:
    by_letter = MessagesCounter("any", len, media.media_prices("gpt-4o"))
    for message in messages:
        assert by_letter.chars(message) > 0
        assert by_letter.message(message) > PER_MESSAGE
