"""How a reply continues after the proxy's own head: events as they come, anything else as events."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from proxy.endpoints.chat.endpoint import CHAT_ENDPOINT
from proxy.http.headers import Headers
from proxy.http.sse import EventReader
from proxy.serving.keepalive import COMMENT, Continuation, allows_beats, early_headers
from tests.support import replies

EVENTS: Headers = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
JSON: Headers = [(b"content-type", b"application/json")]


def continued(status: int, headers: Headers, *parts: bytes) -> bytes:
    going = Continuation(CHAT_ENDPOINT, status, headers)
    return b"".join([*(going.feed(part, is_last=False) for part in parts), going.feed(b"", is_last=True)])


def events_in(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    return [each if each == "[DONE]" else json.loads(each) for each in EventReader().feed(data)]


def encoded(encoding: bytes, headers: Headers = EVENTS) -> Headers:
    return [*headers, (b"content-encoding", encoding)]


def test_a_comment_is_no_event_and_a_chunk_adds_nothing() -> None:
    assert events_in(COMMENT) == []
    [chunk] = events_in(CHAT_ENDPOINT.beat("m", 7.9))
    assert chunk["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
    assert (chunk["object"], chunk["model"], chunk["created"]) == ("chat.completion.chunk", "m", 7)


def test_an_early_head_has_only_headers_that_no_retry_changes() -> None:
    decided = [("X-Condenser-Session", "s"), ("X-Condenser-Action", "condensed"), ("X-Condenser-Headroom", "9")]
    head = early_headers(decided)
    assert (b"x-condenser-action", b"pending") in head
    assert (b"x-condenser-session", b"s") in head
    assert [name for name, _ in head] == [
        b"content-type",
        b"cache-control",
        b"x-condenser-action",
        b"x-condenser-session",
    ]


def test_no_beats_are_sent_before_a_body_with_a_content_length() -> None:
    assert allows_beats(200, EVENTS)
    assert not allows_beats(200, [*EVENTS, (b"Content-Length", b"9")])


def test_events_are_passed_on_as_they_come() -> None:
    parts = [b": x\r\n\r\nda", b"ta: \xff\r\n\r\n", b"data: [DONE]"]
    going = Continuation(CHAT_ENDPOINT, 200, EVENTS)
    assert [going.feed(part, is_last=False) for part in parts] == parts
    assert going.feed(b"", is_last=True) == b""


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_encoded_events_are_decoded(size: int) -> None:
    plain = replies.sse({"a": "b" * 100}) * 9
    packed = gzip.compress(plain, mtime=0)
    parts = [packed[at : at + size] for at in range(0, len(packed), size)]
    assert continued(200, encoded(b"gzip"), *parts) == plain


@pytest.mark.parametrize(
    ("encoding", "parts"),
    [(b"br", [b"\x0b\x02", b"\x80"]), (b"gzip", [b"not packed", b"at all"])],
    ids=["an unknown encoding", "a wrong one"],
)
def test_events_that_cannot_be_decoded_become_one_error(encoding: bytes, parts: list[bytes]) -> None:
    [said] = events_in(continued(200, encoded(encoding), *parts))
    assert said["error"]["code"] == "upstream_error"


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"no \xc3\xbcnits","type":"x","code":"y","extra":[1.0]}}',
        b'\n{\r\n  "error": {"message": "n", "code": 12345678901234567890}\r\n}\n',
    ],
)
def test_an_error_keeps_its_members_in_one_event_of_one_line(body: bytes) -> None:
    gone = continued(429, JSON, body)
    assert gone.count(b"\n") == 2
    assert events_in(gone) == [json.loads(body)]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (502, b"<html>Bad gateway</html>", "The upstream answered 502: <html>Bad gateway</html>"),
        (404, b'{"error": "model not found"}', 'The upstream answered 404: {"error": "model not found"}'),
        (401, b'{"detail": "who?"}', 'The upstream answered 401: {"detail": "who?"}'),
        (307, b"", "The upstream answered 307: "),
        (200, b'{"choices": []', 'The upstream answered 200: {"choices": []'),
        (200, b'{"choices": [1]}', 'The upstream answered 200: {"choices": [1]}'),
        (200, b"[" * 100_000, "The upstream answered 200: " + "[" * 1_000),
    ],
)
def test_any_other_reply_is_quoted_in_an_error(status: int, body: bytes, message: str) -> None:
    [said] = events_in(continued(status, JSON, body))
    assert said == {"error": {"message": message, "type": "upstream_error", "param": None, "code": "upstream_error"}}


def test_an_error_in_an_unknown_encoding_is_reported_by_its_status() -> None:
    [said] = events_in(continued(503, encoded(b"br", JSON), b"\x0b\x02"))
    assert "503" in said["error"]["message"]


def test_a_completion_in_one_piece_becomes_one_chunk() -> None:
    call = replies.ToolCall("run", "{}", "call_1")
    whole = replies.completion("hi", tool_calls=[call]).steps[0]
    assert isinstance(whole, bytes)
    chunk, done = events_in(continued(200, encoded(b"gzip", JSON), gzip.compress(whole)))
    completion = json.loads(whole)
    [choice] = chunk["choices"]
    assert done == "[DONE]"
    assert chunk["object"] == "chat.completion.chunk"
    assert (chunk["id"], chunk["usage"]) == (completion["id"], completion["usage"])
    assert choice["finish_reason"] == "tool_calls"
    assert choice["delta"]["content"] == "hi"
    assert choice["delta"]["tool_calls"] == [{"index": 0, **call.as_json()}]


def test_beats_are_sent_only_before_unencoded_events() -> None:
    assert allows_beats(200, EVENTS)
    assert allows_beats(200, encoded(b"identity"))
    assert not allows_beats(200, JSON)
    assert not allows_beats(500, EVENTS)
    assert not allows_beats(200, encoded(b"gzip"))
