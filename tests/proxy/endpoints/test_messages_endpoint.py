"""What the endpoint of the Messages API reads and writes, byte by byte."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from proxy.endpoints.endpoint import MalformedElement, Question
from proxy.endpoints.messages import MESSAGES_ENDPOINT as ENDPOINT
from proxy.endpoints.replies import ending, ending_in
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
from proxy.tokens.counter import Tokenizers
from tests.support.messages_drafts import SYSTEM, TOOLS, request_of
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
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": CONTENT,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE,
}
STREAM = b"".join(events(MESSAGE))
IN_EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]


# -- replies -----------------------------------------------------------------------------------------------


def test_a_stream_that_failed_or_has_not_ended_is_not_captured() -> None:
    for data in (STREAM[: STREAM.index(b"event: message_delta")], event(error("Overloaded", "overloaded_error"))):
        capture = ENDPOINT.capture(IN_EVENTS)
        capture.feed(data)
        assert capture.items() == ()


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_ending_of_a_reply_is_that_of_its_text(is_complete: bool) -> None:
    said = "A long answer to a short question. " * 20
    message = {**MESSAGE, "content": [text(said)]}
    expected = ending(said)
    assert ending_in(b"".join(events(message)), ENDPOINT.text_places, is_complete=is_complete) == expected
    assert ending_in(json.dumps(message).encode(), ENDPOINT.text_places, is_complete=True) == expected


def test_the_last_event_is_found_only_where_a_line_begins() -> None:
    assert ENDPOINT.last_event_at(STREAM, b"") == STREAM.rindex(b"event: message_stop")
    nameless = b'data: {"type": "message_stop"}\n\n'
    assert ENDPOINT.last_event_at(nameless, b"\n") == 0
    assert ENDPOINT.last_event_at(b"event: message_stop\n", b'"') == -1
    assert ENDPOINT.last_event_at(STREAM[: STREAM.index(b"event: message_delta")], b"") == -1


# -- errors ------------------------------------------------------------------------------------------------

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
    assert ENDPOINT.error_event(ours, b"") == b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"


def test_a_prompt_that_cannot_fit_is_refused_in_anthropics_words() -> None:
    body = json.loads(ENDPOINT.error_body(ContextLengthExceeded("The tools alone are too long.")))
    assert body["error"]["message"].startswith("prompt is too long: ")


def test_the_upstreams_own_error_stays_as_it_is() -> None:
    theirs = json.dumps(error("invalid x-api-key", "authentication_error")).encode()
    assert ENDPOINT.error_body(CredentialRefused(401, theirs)) == theirs


# -- own calls ---------------------------------------------------------------------------------------------

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
    body = json.loads(ENDPOINT.question(question, "max_tokens"))
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


# -- requests ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("value", ["hi", {"content": "hi"}, {"role": 1}])
def test_what_is_no_message_is_refused(value: object) -> None:
    with pytest.raises(MalformedElement):
        ENDPOINT.look(value)


def test_a_search_is_told_from_the_clients_calls() -> None:
    said = ENDPOINT.said(json.dumps(MESSAGE).encode())
    assert said is not None
    assert (said.calls_memory, said.has_client_calls) == (False, True)
    assert ENDPOINT.said(b'{"type": "error"}') is None


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        ("claude-3-5-sonnet-20241022", 1.18),
        ("claude-sonnet-4-20250514", 1.18),
        ("anthropic/claude-opus-4.6", 1.18),
        ("claude-opus-4-8", 1.53),
        ("claude-opus-5", 1.53),
        ("claude-from-next-year", 1.53),
        ("glm-5", 1.0),
    ],
)
def test_tokens_of_a_claude_are_guessed_by_its_family(model: str, factor: float) -> None:
    said = "The quick brown fox jumps over the lazy dog. " * 40
    tokenizers = Tokenizers()
    count, plain = (tokenizers.for_model(each, ENDPOINT.counter).text(said) for each in (model, "gpt-4o"))
    assert count == round(plain * factor)


def test_a_side_call_for_a_title_is_offered_no_tool() -> None:
    schema = {"output_config": {"format": {"type": "json_schema", "schema": {}}}}
    uses = [ENDPOINT.tool_use({**schema, **more}) for more in ({}, {"tools": TOOLS})]
    assert [use is not None and use.takes_another for use in uses] == [False, True]
