"""Requests cross the proxy as they are, path, headers and body, unless a path is not the upstream's to see."""

import socket
from urllib.parse import urlsplit

import pytest

from tests.http.strict import assert_openai_error
from tests.support import wire
from tests.support.proxy import Proxy, assert_relayed, running_proxy
from tests.support.recording import CHAT
from tests.support.replies import Reply, raw
from tests.support.server import listen
from tests.support.stage import body_of, chat, proxy_with_upstream
from tests.support.upstream import BINARY, ScriptedUpstream

HI = b'{"model":"scripted-1","messages":[{"role":"user","content":"hi"}]}'

# -- targets and methods -----------------------------------------------------------------------------------

TARGETS = [
    "/v1/models?limit=2&after=a%20b",
    "/v1/models?limit=2&limit=3&empty=&flag",
    "/v1/models/org%2Fname",
    "/v1/models/org%2fname%3Av1",
    "/v1/models/na%C3%AFve%20name",
    "/v1/models/a:b@c,d;e=f",
    "/v1/files/file-1/content",
    "/v1/anything/new?q=%7B%22a%22%3A1%7D&plus=a+b&pct=100%25",
    "/v1/threads/t/runs?order=desc&x=%2e%2e%2f",
    "/v1/..hidden/file..name/...",
]


@pytest.mark.parametrize("target", TARGETS)
def test_path_and_query_cross_unchanged(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
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


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("status", [204, 301, 302, 303, 304, 307, 308, 404, 418])
def test_a_status_comes_back_with_its_headers_and_no_redirect_is_followed(
    status: int, method: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    body = b"" if status in (204, 304) else b"teapot"
    there = f"{upstream.url}/v1/elsewhere"
    headers = (("etag", '"v1"'), ("location", there), *([("content-length", "6")] if body else []))
    upstream.answer(lambda request: Reply(status, headers, (body,) if body else ()))
    answer = wire.request(proxy.url, method, "/v1/files/f")
    assert (answer.status, answer.body) == (status, body)
    assert (answer.header("etag"), answer.header("location")) == ('"v1"', there)
    assert answer.header("transfer-encoding") is None
    assert upstream.journal.to("/v1/elsewhere") == []


# -- request headers ---------------------------------------------------------------------------------------


def test_request_headers_are_forwarded_but_for_those_of_the_hop(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    kept = [*wire.JSON, ("Authorization", "Bearer sk-caller"), ("X-Twice", "1"), ("X-Twice", "2"), ("X-Empty", "")]
    hop = [("Connection", "keep-alive, X-Private"), ("X-Private", "secret"), ("TE", "trailers"), ("Trailer", "X-T")]
    wire.request(proxy.url, "POST", CHAT, HI, [*kept, *hop])
    got = upstream.journal.only()
    assert got.header("host") == urlsplit(upstream.url).netloc
    passed = [pair for pair in got.headers if pair[0] not in {"host", "content-length", "connection"}]
    assert passed == [(name.lower(), value) for name, value in kept]


OURS = [("X-Condenser-Session", "s"), ("x-condenser-strategy", "off"), ("X-CONDENSER-No-Store", "true")]


@pytest.mark.parametrize("target", [CHAT, "/v1/responses", "/v1/embeddings"])
def test_our_headers_are_stripped_on_every_path(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    body = b'{"model":"m","input":"hi","messages":[{"role":"user","content":"hi"}]}'
    assert wire.request(proxy.url, "POST", target, body, [*wire.JSON, *OURS]).status == 200
    names = [name for name, _ in upstream.journal.only(target).headers]
    assert not [name for name in names if name.startswith("x-condenser")]


def test_a_chunked_request_body_arrives_whole(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
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
def test_an_unchanged_body_is_forwarded_as_it_came(body: bytes, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answer = wire.request(proxy.url, "POST", CHAT, body, wire.JSON)
    assert answer.status == 200
    assert upstream.journal.only().body == body
    assert_relayed(proxy, upstream)


@pytest.mark.parametrize("body", [b"", b"not json", b"\x00\xff" * 5000], ids=["empty", "text", "binary"])
def test_any_body_is_forwarded_on_the_other_paths(body: bytes, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    wire.request(proxy.url, "POST", "/v1/uploads/u/parts", body, [("Content-Type", "application/x")])
    assert upstream.journal.only("/v1/uploads/u/parts").body == body


# -- environment -------------------------------------------------------------------------------------------


def test_proxy_variables_are_ignored(upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    with listen() as trap:
        address = f"http://127.0.0.1:{trap.getsockname()[1]}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, address)
            monkeypatch.setenv(name.lower(), address)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with running_proxy(upstream.url) as proxy:
            assert wire.request(proxy.url, "POST", CHAT, HI, wire.JSON).status == 200
    assert len(upstream.journal.to(CHAT)) == 1


def test_a_condensed_request_keeps_numbers_that_python_refuses() -> None:
    digits = "7" * 5_000
    with proxy_with_upstream() as stage:
        body = body_of(chat(30), seed=0).replace(b'"seed" :  0', f'"seed":{digits}'.encode())
        before, last, behind = body.rpartition(b'"role": "user"')
        answer = stage.post(before + f'"extra":{digits},'.encode() + last + behind)
        assert (answer.status, answer.action) == (200, "condensed")
        for member in ("seed", "extra"):
            assert f'"{member}":{digits}'.encode() in stage.forwarded[-1].body


# -- other endpoints and what is not ours ------------------------------------------------------------------


GENERATING = [
    "/v1/completions",
    "/v1/responses/resp_1/cancel",
    "/v1/conversations",
    "/v1/conversations/conv_1/items",
    "/v1/threads",
    "/v1/messages/batches",
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/images/generations",
    "/v1/audio/speech",
    "/v1/videos",
    "/v1/realtime/sessions",
]


@pytest.mark.parametrize("target", GENERATING)
def test_other_generating_endpoints_are_bypassed(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    body = b'{"model":"m","prompt":"p","input":"i","messages":[{"role":"user","content":"hi"}]}'
    answer = wire.request(proxy.url, "POST", target, body, wire.JSON)
    assert (answer.action, answer.reason) == ("bypassed", "not-condensed-endpoint")
    assert_relayed(proxy, upstream, target, action="bypassed")


def test_the_root_answers_head_and_says_where_the_api_is(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answer = wire.request(proxy.url, "HEAD", "/")
    assert (answer.status, answer.body) == (200, b"")
    for method in ("GET", "POST"):
        refused = wire.request(proxy.url, method, "/")
        assert refused.status == 404
        assert "set base_url to" in refused.json()["error"]["message"]
    assert not list(upstream.journal)


@pytest.mark.parametrize("target", ["/v1/files", "/v1/responsesx", "/v1/chat/completions/chatcmpl-1"])
def test_other_endpoints_pass_without_a_word(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answer = wire.request(proxy.url, "POST", target, b"{}", wire.JSON)
    assert answer.action is None
    assert_relayed(proxy, upstream, target, action=None)


def test_a_completion_with_a_slash_at_its_end_is_one(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answer = wire.request(proxy.url, "POST", CHAT + "/", HI, [*wire.JSON, ("X-Condenser-Dry-Run", "true")])
    assert answer.json()["object"] == "condenser.dry_run"
    answer = wire.request(proxy.url, "POST", CHAT + "/", HI, wire.JSON)
    assert (answer.status, answer.action) == (200, "passed")
    assert [each.path for each in upstream.journal.to()] == [CHAT]


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
def test_no_path_climbs_out_of_v1(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
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


def test_a_wrong_method_on_our_endpoint_is_405(proxy: Proxy) -> None:
    answer = wire.request(proxy.url, "POST", "/livez", b"{}", wire.JSON)
    assert answer.status == 405
    assert_openai_error(answer.body)
    assert "GET" in (answer.header("allow") or "")
