"""The endpoint of the Messages API: what it reads and writes, byte by byte, and what it counts."""

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from proxy.errors import (
    BadRequest,
    BodyTooLarge,
    ContextLengthExceeded,
    CredentialRefused,
    HeadMismatch,
    Overloaded,
    ProxyError,
    UpstreamUnavailable,
)
from proxy.http.headers import Headers
from proxy.protocols.counter import PER_MESSAGE, REPLY_PRIMING
from proxy.protocols.endpoint import MalformedElement, Question
from proxy.protocols.messages import MESSAGES_ENDPOINT as ENDPOINT
from proxy.protocols.messages import PER_CALL, TOOLS_PROMPT, MessagesCounter
from proxy.protocols.replies import ending, ending_in
from proxy.tokens import media
from proxy.tokens.counter import Counted, Tokenizers
from tests.support.messages_drafts import SYSTEM, TOOLS, messages_conversations, request_of
from tests.support.messages_upstream import error, events, text, thinking, tool_use, web_search
from tests.support.prefixes import event
from tests.support.strict_messages import refusal_of

Json = dict[str, Any]

CONTENT = [
    {**thinking("Well. 苔"), "signature": "c2ln"},
    *web_search("moss", "https://moss.example"),
    text('Look: "苔" 🌱\n\ndata: [DONE]\nevent: message_stop'),
    {"id": "toolu_1", **tool_use("read", {"path": "ä", "deep": {"a": [1, None]}})},
]
USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 7}
ENDED = {"stop_reason": "tool_use", "stop_sequence": None, "usage": USAGE}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": CONTENT,
    **ENDED,
}
STREAM = b"".join(events(MESSAGE))
IN_EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]


def test_a_stream_that_failed_or_has_not_ended_is_not_captured() -> None:
    for data in (STREAM[: STREAM.index(b"event: message_delta")], event(error("Overloaded", "overloaded_error"))):
        capture = ENDPOINT.capture(IN_EVENTS)
        capture.feed(data)
        assert capture.items() == ()


def test_a_reply_has_its_last_event_and_the_ending_of_its_text() -> None:
    for is_complete in [True, False]:
        said = "A long answer to a short question. " * 20
        message = {**MESSAGE, "content": [text(said)]}
        expected = ending(said)
        assert ending_in(b"".join(events(message)), ENDPOINT.text_places, is_complete=is_complete) == expected
        assert ending_in(json.dumps(message).encode(), ENDPOINT.text_places, is_complete=True) == expected
    assert ENDPOINT.last_event_at(STREAM, b"") == STREAM.rindex(b"event: message_stop")
    nameless = b'data: {"type": "message_stop"}\n\n'
    assert ENDPOINT.last_event_at(nameless, b"\n") == 0
    assert ENDPOINT.last_event_at(b"event: message_stop\n", b'"') == -1
    assert ENDPOINT.last_event_at(STREAM[: STREAM.index(b"event: message_delta")], b"") == -1


ERRORS = [
    (BadRequest("No."), "invalid_request_error"),
    (ContextLengthExceeded("Too much."), "invalid_request_error"),
    (BodyTooLarge("No."), "request_too_large"),
    (HeadMismatch("1-a", "1-b"), "invalid_request_error"),
    (Overloaded("No."), "overloaded_error"),
    (UpstreamUnavailable("No."), "api_error"),
    (ProxyError("No."), "api_error"),
]


@pytest.mark.parametrize(("ours", "kind"), ERRORS)
def test_each_error_has_a_kind_that_the_vendor_knows(ours: ProxyError, kind: str) -> None:
    body = json.loads(ENDPOINT.error_body(ours))
    assert (body["type"], body["error"]["type"], body["error"]["code"]) == ("error", kind, ours.code)
    assert body["error"]["message"].endswith(ours.message)
    assert body["error"]["message"].startswith("prompt is too long: ") is isinstance(ours, ContextLengthExceeded)
    assert ENDPOINT.error_event(ours, b"") == b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"


def test_the_upstreams_own_error_stays_as_it_is() -> None:
    theirs = json.dumps(error("invalid x-api-key", "authentication_error")).encode()
    assert ENDPOINT.error_body(CredentialRefused(401, theirs)) == theirs


VIEW = json.dumps(
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Yes?"}, *request_of([])["messages"]]
)


@pytest.mark.parametrize(
    "question",
    [
        Question("claude-x", "Summarize.", "The text. \ud800", 100, temperature=0.5),
        Question("claude-x", "", "Summarize.", 100, VIEW, {"system": json.dumps(SYSTEM), "tools": json.dumps(TOOLS)}),
        Question("claude-x", "", "Summarize.", 100, '[{"role":"user","content":"hi"}]', {}, alternates=True),
        Question("claude-x", "", "Summarize.", 100, VIEW, {"system": "null", "tools": "[]"}),
    ],
    ids=["isolated", "continued", "alternating", "bare"],
)
def test_the_vendor_takes_what_the_proxy_asks(question: Question) -> None:
    body = json.loads(ENDPOINT.question(question))
    assert refusal_of(body) == ""
    assert body["max_tokens"] == 100
    assert body.get("tool_choice") == ({"type": "none"} if body.get("tools") else None)
    assert body["messages"][-1]["role"] == "user"
    roles = [message["role"] for message in body["messages"]]
    assert all(a != b for a, b in pairwise(roles)) or not question.alternates


@pytest.mark.parametrize(
    ("reason", "finish"), [("end_turn", "stop"), ("max_tokens", "length"), ("refusal", "refusal"), (None, "None")]
)
def test_an_answer_says_why_it_ended_in_the_words_of_chat(reason: str | None, finish: str) -> None:
    (answer,) = (
        ENDPOINT.answers({**MESSAGE, "content": [thinking("Hm."), text("Yes.")], "stop_reason": reason}, 5) or ()
    )
    assert (getattr(answer, "text", None), getattr(answer, "finish_reason", None)) == ("Yes.", finish)
    assert ENDPOINT.answers({"error": {}}, 0) is None


@pytest.mark.parametrize(
    ("block", "is_text"),
    [
        (text("a"), True),
        (thinking("a"), True),
        ({"type": "tool_result", "tool_use_id": "a", "content": [text("a")]}, True),
        ({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": {}}]}, False),
        ({"type": "document", "source": {}}, False),
        ({"type": "from-next-year"}, False),
    ],
)
def test_only_blocks_whose_bytes_bound_their_tokens_count_as_text(block: Json, is_text: bool) -> None:
    assert ENDPOINT.look({"role": "user", "content": [block]}) == ("user", is_text)


def test_a_search_and_a_side_call_are_told_and_no_message_refused() -> None:
    said = ENDPOINT.said(json.dumps(MESSAGE).encode())
    assert said is not None
    assert (said.calls_memory, said.has_client_calls) == (False, True)
    assert ENDPOINT.said(b'{"type": "error"}') is None
    schema = {"output_config": {"format": {"type": "json_schema", "schema": {}}}}
    uses = [ENDPOINT.tool_use({**schema, **more}) for more in ({}, {"tools": TOOLS})]
    assert [use is not None and use.takes_another for use in uses] == [False, True]
    for value in ["hi", {"content": "hi"}, {"role": 1}]:
        with pytest.raises(MalformedElement):
            ENDPOINT.look(value)


FAMILIES = {
    1.18: ("claude-3-5-sonnet-20241022", "claude-sonnet-4-20250514", "anthropic/claude-opus-4.6"),
    1.53: ("claude-opus-4-8", "claude-opus-5", "claude-from-next-year"),
    1.0: ("glm-5",),
}


def test_tokens_of_a_claude_are_guessed_by_its_family() -> None:
    said, tokenizers = "The quick brown fox jumps over the lazy dog. " * 40, Tokenizers()
    plain = tokenizers.for_model("gpt-4o", ENDPOINT.counter).text(said)
    for factor, models in FAMILIES.items():
        for model in models:
            assert tokenizers.for_model(model, ENDPOINT.counter).text(said) == round(plain * factor), model


BY_WORD = MessagesCounter("any", lambda text: len(text.split()), media.media_prices("claude-sonnet-4-5"))
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def picture(width: int, height: int) -> dict[str, Any]:
    data = base64.b64encode(PNG + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x06\0\0\0").decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def tokens(*content: Any) -> int:
    return BY_WORD.message({"role": "user", "content": list(content)}) - PER_MESSAGE


def test_texts_calls_results_and_thinking_have_their_costs() -> None:
    assert BY_WORD.message({"role": "user", "content": "one two"}) == PER_MESSAGE + 2
    assert tokens({"type": "text", "text": "one two", "cache_control": {"type": "ephemeral"}}) == 2
    assert tokens({"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"a": "b c"}}) == PER_CALL + 3
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "one two"}]}
    assert tokens(result) == PER_CALL + 2
    assert counted({"type": "thinking", "thinking": "one two", "signature": "x" * 600}) == (2, False)
    assert counted({"type": "thinking", "thinking": "", "signature": "x" * 600}) == (0, True)
    assert counted({"type": "redacted_thinking", "data": "x" * 600}) == (0, True)


def counted(*content: Any) -> Counted:
    count = BY_WORD.counted({"role": "user", "content": list(content)})
    return count._replace(tokens=count.tokens - PER_MESSAGE)


def test_media_are_priced_and_never_tokenized() -> None:
    for size, cost in [((750, 100), 108), ((4_000, 400), 336), ((3_000, 3_000), 1_568)]:
        result = {"type": "tool_result", "tool_use_id": "a", "content": [picture(*size)]}
        assert (tokens(picture(*size)), tokens(result)) == (cost, PER_CALL + cost)
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


@given(messages_conversations(at_most=8))
def test_a_message_of_a_conversation_costs_about_its_text(messages: list[dict[str, Any]]) -> None:
    by_letter = MessagesCounter("any", len, media.media_prices("gpt-4o"))
    for message in messages:
        assert by_letter.chars(message) > 0
        assert by_letter.message(message) > PER_MESSAGE
