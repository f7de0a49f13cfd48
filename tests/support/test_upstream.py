"""The scripted upstream itself, asked directly: the ground the end-to-end tests stand on."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.support import wire
from tests.support.recording import CHAT
from tests.support.replies import DONE, completion, error, hang, hang_up, sse, stream, text_chunks
from tests.support.signals import Signal
from tests.support.upstream import BINARY, Counting, ScriptedUpstream


def asking(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def test_it_records_a_request_as_it_was_sent(upstream: ScriptedUpstream) -> None:
    headers = [("X-Twice", "1"), ("X-Twice", "2")]
    wire.request(upstream.url, "PATCH", "/v1/a%2Fb/%2e?x=%20&x=1", b"\x00 body", headers)
    [seen] = upstream.journal
    assert (seen.method, seen.target, seen.body) == ("PATCH", "/v1/a%2Fb/%2e?x=%20&x=1", b"\x00 body")
    assert [pair for pair in seen.headers if pair[0] == "x-twice"] == [("x-twice", "1"), ("x-twice", "2")]


def test_it_echoes_when_nothing_is_scripted_and_streams_when_asked(upstream: ScriptedUpstream) -> None:
    whole = wire.post_json(upstream.url, CHAT, asking("a b"))
    assert whole.json()["choices"][0]["message"]["content"] == "echo: a b"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = wire.post_json(upstream.url, CHAT, asking("a b", **options))
    *chunks, done = wire.events(streamed.body)
    deltas = [c["choices"][0]["delta"] for c in map(json.loads, chunks) if c["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "echo: a b"
    assert json.loads(chunks[-1])["usage"]["prompt_tokens"] == 1
    assert done == "[DONE]"


def test_it_answers_in_the_order_of_its_script_then_by_default(upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("one"), error(429, headers=[("retry-after", "3")]))
    answers = [wire.post_json(upstream.url, CHAT, asking()) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 429, 200]
    assert answers[1].header("retry-after") == "3"
    assert answers[2].json()["choices"][0]["message"]["content"] == "echo: hi"


def test_a_gate_holds_the_rest_of_a_stream(upstream: ScriptedUpstream) -> None:
    gate = Signal()
    first, *rest = map(sse, text_chunks("x"))
    upstream.reply(stream(first, gate, *rest))
    with wire.opened(upstream.url, "POST", CHAT, json.dumps(asking()).encode()) as response:
        assert response.read1() == first
        gate.set()
        assert response.read() == b"".join(rest) + DONE
    upstream.journal.only().finished.wait()
    assert not upstream.journal.only().disconnected.is_set()


def test_it_notices_a_client_that_leaves(upstream: ScriptedUpstream) -> None:
    upstream.reply(hang(Signal()))
    with wire.sent(upstream.url, "POST", CHAT, json.dumps(asking()).encode()):
        asked = upstream.journal.await_arrival()
    asked.disconnected.wait()


def test_it_can_break_off_and_hang_up(upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(text_chunks("x")[0], cut=True), hang_up())
    with pytest.raises(wire.Broken):
        wire.post_json(upstream.url, CHAT, asking())
    with pytest.raises(http.client.RemoteDisconnected):
        wire.post_json(upstream.url, CHAT, asking())


def test_it_counts_and_refuses_what_exceeds_its_window() -> None:
    counting = Counting(lambda body: sum(len(m["content"]) for m in body["messages"]), window=5)
    with ScriptedUpstream(counting=counting) as upstream:
        assert wire.post_json(upstream.url, CHAT, asking("12345")).json()["usage"]["prompt_tokens"] == 5
        refused = wire.post_json(upstream.url, CHAT, asking("123456"))
    assert refused.status == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_its_default_routes_answer_in_openai_shapes(upstream: ScriptedUpstream) -> None:
    assert wire.request(upstream.url, "GET", "/v1/models").json()["object"] == "list"
    assert wire.request(upstream.url, "GET", "/v1/files/f/content").body == BINARY
    embedded = wire.post_json(upstream.url, "/v1/embeddings", {"input": ["a", "b"]}).json()
    assert [item["embedding"] for item in embedded["data"]] == [[0.5, -0.25, 2.0]] * 2
    assert wire.post_json(upstream.url, "/v1/completions", {}).json()["object"] == "text_completion"
    assert wire.post_json(upstream.url, "/v1/responses", {}).json()["object"] == "response"
