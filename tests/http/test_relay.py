"""Replies cross the proxy byte for byte, as they come; and how each side's leaving ends the other's call."""

import gzip

import pytest

from tests.http.strict import assert_openai_error
from tests.support import wire
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.replies import (
    DONE,
    Reply,
    completion,
    hang,
    hang_up,
    raw,
    sse,
    stream,
    stream_error,
    text_chunks,
    usage_chunk,
)
from tests.support.server import listen
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

CANCELLED_WITHIN = 1.0
HI = b'{"model":"scripted-1","messages":[{"role":"user","content":"hi"}]}'
HI_STREAMED = b'{"model":"scripted-1","stream":true,"messages":[{"role":"user","content":"hi"}]}'

# -- responses ---------------------------------------------------------------------------------------------


def test_response_headers_come_back_but_for_those_of_the_hop_and_ours(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    kept = [("x-request-id", "req_1"), ("link", "<a>; rel=next"), ("link", "<b>; rel=prev"), ("server", "scripted")]
    hop = [("connection", "keep-alive, x-private"), ("x-private", "secret"), ("trailer", "x-t")]
    upstream.reply(completion("ok", headers=[*kept, *hop, ("x-condenser-action", "condensed")]))
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    got = [(name.lower(), value) for name, value in answer.headers]
    assert [pair for pair in got if pair[0] in dict(kept)] == kept
    assert not {name for name, _ in got} & {"x-private", "trailer"}
    assert answer.every("x-condenser-action") == ["passed"]


@pytest.mark.parametrize("target", [CHAT, "/v1/files/f/content"])
def test_a_compressed_body_arrives_compressed(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    squeezed = gzip.compress(b'{"id": "x", "choices": []}' * 50, mtime=0)
    upstream.answer(lambda _: raw(squeezed, headers=[("content-encoding", "gzip")]))
    headers = [*wire.JSON, ("Accept-Encoding", "gzip")]
    answer = wire.request(proxy.url, "POST", target, HI, headers)
    assert (answer.header("content-encoding"), answer.body) == ("gzip", squeezed)


def test_a_whole_reply_keeps_its_content_length(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    assert answer.header("content-length") == str(len(answer.body))
    assert upstream.journal.only().sent == answer.body


@pytest.mark.parametrize("target", [CHAT, "/v1/completions", "/v1/responses", "/v1/anything"])
def test_chunks_reach_the_client_as_they_are_sent(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gates = [Signal(), Signal()]
    parts = [sse(chunk) for chunk in text_chunks("x")]
    steps = (parts[0], gates[0], parts[1], gates[1], parts[2])
    upstream.answer(lambda request: stream(*steps))
    with wire.opened(proxy.url, "POST", target, HI_STREAMED, wire.JSON) as response:
        assert response.read1() == parts[0]
        gates[0].set()
        assert response.read1() == parts[1]
        gates[1].set()
        assert response.read() == parts[2] + DONE


ODD_STREAMS = {
    "comments": b": OPENROUTER PROCESSING\n\ndata: {}\n\n",
    "no space": b"data:{}\n\ndata:[DONE]\n\n",
    "CRLF": b"data: {}\r\n\r\ndata: [DONE]\r\n\r\n",
    "event and id": b"event: message\nid: 7\nretry: 10\ndata: {}\n\n",
    "multi-line data": b'data: {"a":\ndata: 1}\n\n',
    "not UTF-8": b"data: \xff\xfe\n\n",
    "byte order mark": b"\xef\xbb\xbfdata: {}\n\n",
    "no end of the last event": b"data: {}\n\ndata: [DONE]",
    "not JSON": b"data: hello\n\n",
    "error event": stream_error(),
    "nothing": b"",
}


@pytest.mark.parametrize("body", ODD_STREAMS.values(), ids=ODD_STREAMS)
def test_a_stream_passes_byte_for_byte_whatever_is_in_it(body: bytes, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(body, done=False))
    assert wire.request(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON).body == body


def test_a_stream_split_anywhere_passes_byte_for_byte(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    body = b"".join(map(sse, [*text_chunks("Grüezi 👋"), usage_chunk(1, 2)])) + DONE
    upstream.reply(stream(*(body[i : i + 1] for i in range(len(body))), done=False))
    assert wire.request(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON).body == body


def test_a_large_stream_passes_whole(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    part = sse({"choices": [], "pad": "x" * 60_000})
    upstream.reply(stream(*[part] * 100))
    answer = wire.request(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON)
    assert answer.body == part * 100 + DONE


def test_a_json_reply_to_a_streamed_request_passes_as_it_is(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("not streamed"))
    answer = wire.request(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON)
    assert answer.header("content-type") == "application/json"
    assert answer.json()["choices"][0]["message"]["content"] == "not streamed"


# -- upstream errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 429, 500, 502, 503, 504, 529])
def test_upstream_errors_pass_unchanged(status: int, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    body = b'{"error":{"message":"no \xc3\xbcnits","type":"x","code":"y","extra":[1.0]}}'
    upstream.reply(raw(body, status=status, headers=[("retry-after", "3")]))
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    assert (answer.status, answer.body, answer.header("retry-after")) == (status, body, "3")
    assert len(upstream.journal.to(CHAT)) == 1


def test_an_upstream_that_refuses_connections_is_502_in_openai_form(caplog: pytest.LogCaptureFixture) -> None:
    with listen() as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with running_proxy(nowhere) as proxy:
        answers = [
            wire.request(proxy.url, method, target, HI, [*wire.JSON, ("X-Condenser-Session", "s")])
            for method, target in [("POST", CHAT), ("POST", "/v1/embeddings"), ("GET", "/v1/models")]
        ]
    for answer in answers:
        assert (answer.status, answer.header("content-type")) == (502, "application/json")
        assert_openai_error(answer.body)
    # They tell what was decided, and the log why.
    assert [each.action for each in answers] == ["passed", "bypassed", None]
    assert answers[0].session == "s"
    said = [each.getMessage() for each in caplog.records if each.name == "proxy.servers.upstream"]
    refused = f"the upstream {nowhere}/v1 gave no answer: The upstream cannot be reached: connection refused."
    assert said == [refused] * 3


def test_an_upstream_that_hangs_up_is_a_502(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda request: hang_up())
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    assert answer.status == 502
    assert_openai_error(answer.body)


@pytest.mark.parametrize("torn", [b"", b'data: {"choices": [{"ind'], ids=["between events", "within one"])
def test_a_stream_whose_upstream_dies_ends_with_one_error(
    torn: bytes, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    relayed = b"".join(map(sse, text_chunks("one two")[:2]))
    upstream.reply(stream(relayed, *([torn] if torn else []), cut=True))
    answer = wire.request(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON)
    assert answer.body.startswith(relayed)
    *_, last, rest = answer.body.split(b"\n\n")
    assert (last[:6], rest) == (b"data: ", b""), "the error must be an event of its own"
    assert_openai_error(last.removeprefix(b"data: "))
    assert b"[DONE]" not in answer.body


def test_an_upstream_that_dies_in_a_whole_reply_breaks_the_reply_off(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    head = (("content-type", "application/json"), ("content-length", "100"))
    upstream.reply(Reply(200, head, (b'{"id": "x", "cho',), cut=True))
    with pytest.raises(wire.Broken):
        wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)


# -- leaving early -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [CHAT, "/v1/responses", "/v1/anything"])
def test_leaving_before_the_first_byte_stops_upstream(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda request: hang(Signal()))
    with wire.sent(proxy.url, "POST", target, HI, wire.JSON):
        asked = upstream.journal.await_arrival(path=target)
    asked.disconnected.wait(CANCELLED_WITHIN)


@pytest.mark.parametrize("target", [CHAT, "/v1/responses", "/v1/anything"])
def test_leaving_in_a_stream_stops_upstream(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    first = sse(text_chunks("x")[0])
    upstream.answer(lambda request: stream(first, Signal()))
    with wire.opened(proxy.url, "POST", target, HI_STREAMED, wire.JSON) as response:
        assert response.read1() == first
    upstream.journal.only(target).disconnected.wait(CANCELLED_WITHIN)


def test_a_client_that_is_killed_stops_the_upstream(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(text_chunks("x")[0], Signal()))
    with wire.sent(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON) as connection:
        asked = upstream.journal.await_arrival()
        wire.reset(connection)
        asked.disconnected.wait(CANCELLED_WITHIN)


def test_the_proxy_serves_on_after_clients_have_left(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(hang(Signal()), hang(Signal()), completion("still here"))
    for count in (1, 2):
        with wire.sent(proxy.url, "POST", CHAT, HI, wire.JSON):
            asked = upstream.journal.await_arrival(count)
        asked.disconnected.wait(CANCELLED_WITHIN)
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    assert answer.json()["choices"][0]["message"]["content"] == "still here"
