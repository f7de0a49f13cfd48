"""The proxy as a transparent relay: what is not condensed crosses it byte for byte, both ways."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import wire
from tests.support.proxy import Proxy, assert_relayed, proxying
from tests.support.recording import CHAT
from tests.support.replies import (
    DONE,
    Reply,
    completion,
    error,
    hang,
    hang_up,
    raw,
    redirect,
    sse,
    stream,
    stream_error,
    text_chunks,
    usage_chunk,
)
from tests.support.server import listen
from tests.support.signals import Signal
from tests.support.upstream import BINARY, ScriptedUpstream

CANCELLED_WITHIN = 1.0
HI = b'{"model":"scripted-1","messages":[{"role":"user","content":"hi"}]}'
HI_STREAMED = b'{"model":"scripted-1","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def assert_openai_error(body: bytes) -> dict[str, Any]:
    """The envelope, with every member there and absent values as JSON null."""
    payload = json.loads(body)
    assert list(payload) == ["error"]
    assert set(payload["error"]) == {"message", "type", "param", "code"}
    assert isinstance(payload["error"]["message"], str)
    assert isinstance(payload["error"]["type"], str)
    assert "None" not in payload["error"].values()
    found: dict[str, Any] = payload["error"]
    return found


# -- targets and methods -----------------------------------------------------------------------------------

TARGETS = [
    "/v1/models?limit=2&after=a%20b",
    "/v1/models?limit=2&limit=3&empty=&flag",
    "/v1/models/org%2Fname",
    "/v1/models/org%2fname%3Av1",
    "/v1/models/na%C3%AFve%20name",
    "/v1/models/a:b@c,d;e=f",
    "/v1/files/file-1/content",
    "/v1/vector_stores//double//slash/",
    "/v1/anything/new?q=%7B%22a%22%3A1%7D&plus=a+b&pct=100%25",
    "/v1/threads/t/runs?order=desc&x=%2e%2e%2f",
    "/v1/..hidden/file..name/...",
]


@pytest.mark.parametrize("target", TARGETS)
def test_path_and_query_reach_the_upstream_exactly_as_they_were_sent(
    target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    assert wire.request(proxy.url, "GET", target).status == 200
    assert target in [exchange.target for exchange in upstream.journal]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_is_forwarded_with_its_body(method: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    body = b'{ "a" : 1 }'
    answer = wire.request(proxy.url, method, "/v1/batches/b1", body, wire.JSON)
    assert answer.json() == {"method": method, "target": "/v1/batches/b1"}
    assert upstream.journal.only("/v1/batches/b1").body == body
    assert_relayed(proxy, upstream, "/v1/batches/b1", action=None)


def test_head_is_forwarded_and_its_headers_come_back_without_a_body(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda request: raw(BINARY, "application/octet-stream"))
    answer = wire.request(proxy.url, "HEAD", "/v1/files/f/content")
    assert upstream.journal.only("/v1/files/f/content").method == "HEAD"
    assert (answer.status, answer.body) == (200, b"")
    assert answer.header("content-length") == str(len(BINARY))


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_comes_back_without_one(status: int, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda request: Reply(status, (("etag", '"v1"'),)))
    answer = wire.request(proxy.url, "DELETE", "/v1/files/f")
    assert (answer.status, answer.body, answer.header("etag")) == (status, b"", '"v1"')
    assert answer.header("transfer-encoding") is None


def test_an_unusual_status_comes_back_unchanged(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda request: raw(b"teapot", "text/plain", status=418))
    answer = wire.request(proxy.url, "GET", "/v1/brew")
    assert (answer.status, answer.body) == (418, b"teapot")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_handed_to_the_client_and_not_followed(
    status: int, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.answer(lambda request: redirect(f"{upstream.url}/v1/elsewhere", status))
    answer = wire.request(proxy.url, "GET", "/v1/moved")
    assert answer.status == status
    assert answer.header("location") == f"{upstream.url}/v1/elsewhere"
    assert upstream.journal.to("/v1/elsewhere") == []


def test_a_redirected_chat_request_is_not_followed(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(redirect(f"{upstream.url}/v1/elsewhere", 307))
    assert wire.request(proxy.url, "POST", CHAT, HI, wire.JSON).status == 307
    assert upstream.journal.to("/v1/elsewhere") == []


# -- request headers ---------------------------------------------------------------------------------------


def test_end_to_end_request_headers_are_forwarded_including_duplicates(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    headers = [
        *wire.JSON,
        ("Authorization", "Bearer sk-caller"),
        ("OpenAI-Organization", "org-1"),
        ("X-Session-Id", "kept: it is the client's own"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("Accept-Encoding", "gzip, br"),
        ("User-Agent", "tests/1"),
        ("X-Empty", ""),
    ]
    wire.request(proxy.url, "POST", CHAT, HI, headers)
    got = upstream.journal.only().headers
    assert [pair for pair in got if pair[0] not in {"host", "content-length", "connection"}] == [
        (name.lower(), value) for name, value in headers
    ]


def test_the_host_header_names_the_upstream(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    assert upstream.journal.only().header("host") == urlsplit(upstream.url).netloc


def test_hop_by_hop_request_headers_stay_on_their_hop(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    headers = [
        *wire.JSON,
        ("Connection", "keep-alive, X-Private"),
        ("X-Private", "secret"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Trailer", "X-T"),
        ("Proxy-Authorization", "Basic eDp5"),
        ("Proxy-Connection", "keep-alive"),
        ("X-Kept", "yes"),
    ]
    wire.request(proxy.url, "POST", CHAT, HI, headers)
    names = {name for name, _ in upstream.journal.only().headers}
    assert "x-kept" in names
    gone = {"x-private", "keep-alive", "te", "trailer", "proxy-authorization", "proxy-connection"}
    assert not names & gone


OURS = [
    ("X-Condenser-Session", "s"),
    ("x-condenser-strategy", "off"),
    ("X-CONDENSER-No-Store", "true"),
]


@pytest.mark.parametrize("target", [CHAT, "/v1/responses", "/v1/embeddings"])
def test_our_request_headers_are_stripped_in_any_case_on_every_path(
    target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    body = b'{"model":"m","input":"hi","messages":[{"role":"user","content":"hi"}]}'
    assert wire.request(proxy.url, "POST", target, body, [*wire.JSON, *OURS]).status == 200
    names = [name for name, _ in upstream.journal.only(target).headers]
    assert not [name for name in names if name.startswith("x-condenser")]


def test_a_chunked_request_body_arrives_whole(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (HI[:5], HI[5:6], HI[6:]))
    address = urlsplit(proxy.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as raw_socket:
        raw_socket.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert raw_socket.recv(65536).startswith(b"HTTP/1.1 200")
    assert upstream.journal.only().body == HI


# -- request bodies ----------------------------------------------------------------------------------------

TURN = b'"messages":[{"role":"user","content":"hi"}]'
BODIES = {
    "big integers": b'{"model":"m",' + TURN + b',"seed":123456789012345678901234567890}',
    "floats": b'{"model":"m",' + TURN + b',"temperature":1.0,"top_p":1e-05,"x":1E+2}',
    "key order": b'{"z":1,"messages":[{"content":"hi","role":"user"}],"model":"m","a":2}',
    "whitespace": b'\n{ "model" :\t"m",\r\n  "messages":[ {"role":"user",  "content":"hi"} ] }\n',
    "non-ASCII": '{"model":"m","messages":[{"role":"user","content":"Grüezi 👋 你好 \u2028"}]}'.encode(),
    "escapes": b'{"model":"m","messages":[{"role":"user","content":"\\u00fc \\/ \\ud83d\\udc4b \\u0000"}]}',
    "lone surrogate": b'{"model":"m","messages":[{"role":"user","content":"half \\ud83d pair"}]}',
    "unknown members": b'{"model":"m",' + TURN + b',"cache_control":{"x":null},"\xc3\xbc":[]}',
    "unknown message members": b'{"messages":[{"role":"user","content":"hi","cache_control":{"x":null}}],"model":"m"}',
    "duplicate keys": b'{"model":"m","top_k":1,' + TURN + b',"top_k":2}',
    "deep": b'{"model":"m",' + TURN + b',"d":' + b"[" * 60 + b"]" * 60 + b"}",
    "image": b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":'
    b'{"url":"data:image/png;base64,' + b"iVBORw0KGgo" * 20_000 + b'"}}]}]}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_unchanged_chat_body_is_forwarded_as_the_bytes_that_came_in(
    body: bytes, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    answer = wire.request(proxy.url, "POST", CHAT, body, wire.JSON)
    assert answer.status == 200
    assert upstream.journal.only().body == body
    assert_relayed(proxy, upstream)


@pytest.mark.parametrize("body", [b"", b"not json", b"\x00\xff" * 5000], ids=["empty", "text", "binary"])
def test_any_body_is_forwarded_on_the_other_paths(body: bytes, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    wire.request(proxy.url, "POST", "/v1/uploads/u/parts", body, [("Content-Type", "application/x")])
    assert upstream.journal.only("/v1/uploads/u/parts").body == body


# -- responses ---------------------------------------------------------------------------------------------


def test_response_headers_come_back_including_duplicates(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    kept = [
        ("x-request-id", "req_1"),
        ("openai-version", "2020-10-01"),
        ("x-ratelimit-limit-requests", "60"),
        ("link", "<a>; rel=next"),
        ("link", "<b>; rel=prev"),
        ("date", "Sat, 21 Nov 2026 00:00:00 GMT"),
        ("server", "scripted"),
    ]
    upstream.reply(completion("ok", headers=kept))
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    got = [(name.lower(), value) for name, value in answer.headers]
    assert [pair for pair in got if pair[0] in dict(kept)] == kept


def test_hop_by_hop_response_headers_stay_on_their_hop(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    hop = [
        ("connection", "keep-alive, x-private"),
        ("x-private", "secret"),
        ("keep-alive", "timeout=9"),
        ("proxy-authenticate", "Basic"),
        ("trailer", "x-t"),
        ("x-kept", "yes"),
    ]
    upstream.reply(completion("ok", headers=hop))
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    names = {name.lower() for name, _ in answer.headers}
    assert "x-kept" in names
    assert not names & {"x-private", "keep-alive", "proxy-authenticate", "trailer"}


def test_condenser_headers_of_an_upstream_do_not_pass_for_ours(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("ok", headers=[("x-condenser-action", "condensed")]))
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    assert answer.every("x-condenser-action") == ["passed"]


@pytest.mark.parametrize("target", [CHAT, "/v1/files/f/content"])
def test_a_compressed_body_arrives_compressed(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    squeezed = gzip.compress(b'{"id": "x", "choices": []}' * 50, mtime=0)
    upstream.answer(lambda _: raw(squeezed, headers=[("content-encoding", "gzip")]))
    headers = [*wire.JSON, ("Accept-Encoding", "gzip")]
    answer = wire.request(proxy.url, "POST", target, HI, headers)
    assert answer.header("content-encoding") == "gzip"
    assert answer.body == squeezed


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


def test_response_headers_reach_the_client_before_the_first_chunk(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = Signal()
    upstream.reply(stream(gate, *text_chunks("x")))
    with wire.opened(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON) as response:
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert response.getheader("x-condenser-action") == "passed"
        gate.set()
        assert response.read().endswith(DONE)


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


def test_a_stream_split_inside_characters_and_events_passes_byte_for_byte(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
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
def test_an_upstream_error_passes_with_its_status_body_and_headers(
    status: int, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    body = b'{"error":{"message":"no \xc3\xbcnits","type":"x","code":"y","extra":[1.0]}}'
    upstream.reply(raw(body, status=status, headers=[("retry-after", "3")]))
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    assert (answer.status, answer.body, answer.header("retry-after")) == (status, body, "3")
    assert len(upstream.journal.to(CHAT)) == 1


def test_an_upstream_that_refuses_connections_is_502_in_openai_form() -> None:
    with listen() as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with proxying(nowhere) as proxy:
        for method, target in [("POST", CHAT), ("GET", "/v1/models")]:
            answer = wire.request(proxy.url, method, target, HI, wire.JSON)
            assert answer.status == 502
            assert answer.header("content-type") == "application/json"
            assert_openai_error(answer.body)


def test_an_upstream_that_hangs_up_before_its_status_line_is_502_in_openai_form(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.answer(lambda request: hang_up())
    answer = wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)
    assert answer.status == 502
    assert_openai_error(answer.body)


def test_an_upstream_that_dies_in_a_stream_ends_it_with_one_error_event_and_no_done(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    chunks = text_chunks("one two")[:2]
    upstream.reply(stream(*chunks, cut=True))
    answer = wire.request(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON)
    relayed = b"".join(map(sse, chunks))
    assert answer.body.startswith(relayed)
    [last] = wire.events(answer.body[len(relayed) :])
    assert_openai_error(last.encode())
    assert b"[DONE]" not in answer.body


def test_an_upstream_that_dies_inside_an_event_does_not_swallow_the_error_event(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(stream(sse(text_chunks("one")[0]), b'data: {"choices": [{"ind', cut=True))
    answer = wire.request(proxy.url, "POST", CHAT, HI_STREAMED, wire.JSON)
    *_, last, rest = answer.body.split(b"\n\n")
    assert rest == b""
    assert last.startswith(b"data: "), "the error must be an event of its own"
    assert_openai_error(last.removeprefix(b"data: "))


def test_an_upstream_that_dies_in_a_whole_reply_breaks_the_reply_off(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    head = (("content-type", "application/json"), ("content-length", "100"))
    upstream.reply(Reply(200, head, (b'{"id": "x", "cho',), cut=True))
    with pytest.raises(wire.Broken):
        wire.request(proxy.url, "POST", CHAT, HI, wire.JSON)


# -- leaving early -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [CHAT, "/v1/responses", "/v1/anything"])
def test_a_client_that_leaves_before_the_first_byte_stops_the_upstream(
    target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.answer(lambda request: hang(Signal()))
    with wire.sent(proxy.url, "POST", target, HI, wire.JSON):
        asked = upstream.journal.await_arrival(path=target)
    asked.disconnected.wait(CANCELLED_WITHIN)


@pytest.mark.parametrize("target", [CHAT, "/v1/responses", "/v1/anything"])
def test_a_client_that_leaves_in_a_stream_stops_the_upstream(
    target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
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


# -- environment -------------------------------------------------------------------------------------------


def test_proxy_variables_of_the_environment_are_ignored(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listen() as trap:
        address = f"http://127.0.0.1:{trap.getsockname()[1]}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, address)
            monkeypatch.setenv(name.lower(), address)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with proxying(upstream.url) as proxy:
            assert wire.request(proxy.url, "POST", CHAT, HI, wire.JSON).status == 200
    assert len(upstream.journal.to(CHAT)) == 1


# -- other endpoints and what is not ours ------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/v1/completions", "/v1/responses", "/v1/messages"])
def test_the_other_generation_endpoints_are_bypassed_and_say_so(
    target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    body = b'{"model":"m","prompt":"p","input":"i","messages":[{"role":"user","content":"hi"}]}'
    answer = wire.request(proxy.url, "POST", target, body, wire.JSON)
    assert answer.header("x-condenser-action") == "bypassed"
    assert_relayed(proxy, upstream, target, action="bypassed")


ESCAPES = [
    "/v1/../admin",
    "/v1/..",
    "/v1/%2e%2e/admin",
    "/v1/%2E%2E/admin",
    "/v1/.%2e/admin",
    "/v1/%2e./admin",
    "/v1/models/../../admin",
    "/v1/models/%2e%2e/%2e%2e/admin",
    "/v1/./../admin",
    "/v1/..%2fadmin",
    "/v1/%2e%2e%2fadmin",
    "/v1/..%5cadmin",
    "/v1/..\\admin",
    "/v1//../../admin",
]


@pytest.mark.parametrize("target", ESCAPES)
def test_a_path_that_climbs_out_of_v1_never_reaches_the_upstream(
    target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    answer = wire.request(proxy.url, "GET", target)
    assert answer.status in {400, 404}
    assert_openai_error(answer.body)
    assert [e.target for e in upstream.journal if e.target == target or "admin" in e.target] == []


@pytest.mark.parametrize("target", ["/", "/admin", "/v2/models", "/chat/completions", "/V1/models"])
def test_a_path_outside_v1_is_404_in_openai_form(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answer = wire.request(proxy.url, "GET", target)
    assert answer.status == 404
    assert_openai_error(answer.body)
    assert target not in [exchange.target for exchange in upstream.journal]


def test_a_wrong_method_on_an_endpoint_of_ours_is_405_in_openai_form(proxy: Proxy) -> None:
    answer = wire.request(proxy.url, "POST", "/livez", b"{}", wire.JSON)
    assert answer.status == 405
    assert_openai_error(answer.body)
    assert "GET" in (answer.header("allow") or "")


def test_an_upstream_404_under_v1_is_the_upstreams_own(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda request: error(404, "no such thing upstream"))
    answer = wire.request(proxy.url, "GET", "/v1/nothing")
    assert answer.status == 404
    assert answer.json()["error"]["message"] == "no such thing upstream"
