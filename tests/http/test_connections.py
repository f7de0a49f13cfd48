"""What a connection may cost: what is no HTTP, too large, too slow or too much is refused in the form of our errors."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.http.strict import assert_openai_error
from tests.support.proxy import Proxy, running_proxy
from tests.support.replies import hang
from tests.support.signals import BOUND, Signal
from tests.support.upstream import ScriptedUpstream

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
REFUSED = {
    "no request line": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "bad_http"),
    "a method that there is not": (b"FROB /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400, "bad_http"),
    "a length that is none": (POST + b"content-length: many\r\n\r\n", 400, "bad_http"),
    "a head that is too large": (POST + b"x-a: " + b"a" * 70_000, 431, "headers_too_large"),
    "an unknown encoding": (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "bad_http"),
    "a body announced as too large": (POST + b"content-length: 10000000000\r\n\r\n", 413, "body_too_large"),
}
STRANGERS = {"trusted_proxies": ()}
"""Loopback is trusted by default."""
REQUEST = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


def connected(proxy: Proxy) -> socket.socket:
    address = urlsplit(proxy.url)
    return socket.create_connection((str(address.hostname), int(address.port or 0)), BOUND)


def rest_of(connection: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of what comes back until the connection is closed."""
    head, _, body = b"".join(iter(lambda: connection.recv(65_536), b"")).partition(b"\r\n\r\n")
    return head, body


def answer_to(data: bytes, proxy: Proxy) -> tuple[bytes, bytes]:
    with connected(proxy) as connection:
        connection.sendall(data)
        return rest_of(connection)


@pytest.mark.parametrize(("data", "status", "code"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_http_or_too_large_is_refused_in_openai_form(
    data: bytes, status: int, code: str, proxy: Proxy
) -> None:
    head, body = answer_to(data, proxy)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/json" in head
    assert assert_openai_error(body)["code"] == code


def test_half_sent_requests_keep_nobody_waiting(upstream: ScriptedUpstream) -> None:
    with running_proxy(upstream.url, limits={"in_flight": 1, "queue": 0}) as proxy, ExitStack() as open_ones:
        for path in (b"chat/completions", b"embeddings", b"embeddings"):
            half = open_ones.enter_context(connected(proxy))
            half.sendall(REQUEST.replace(b"chat/completions", path)[:-1])
        head, _ = answer_to(REQUEST, proxy)
        assert head.startswith(b"HTTP/1.1 200 ")


LONG_BODY = b"host: 127.0.0.1\r\ncontent-length: 10000000000\r\n\r\n"


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"POST /v1/chat/completions", b"413"), (b"POST /v1/messages", b"413"), (b"POST /elsewhere", b"404")],
)
def test_a_refused_request_with_a_long_body_closes_its_connection(line: bytes, status: bytes, proxy: Proxy) -> None:
    head, body = answer_to(line + b" HTTP/1.1\r\n" + LONG_BODY, proxy)
    assert head.startswith(b"HTTP/1.1 " + status)
    assert b'"error"' in body


def test_a_client_that_is_still_sending_can_read_why_it_is_refused(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + LONG_BODY)
        for _ in range(200):
            connection.sendall(b" " * 10_000)
        head, body = rest_of(connection)
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head
    assert assert_openai_error(body)["code"] == "body_too_large"


def test_a_refused_request_with_a_short_body_keeps_its_connection(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        connection.sendall(b"POST /elsewhere HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"123456789" + REQUEST)
        assert rest_of(connection)[0].startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "rest", [b"host: 127.0.0.1\r\nX-A : b\r\n\r\n", b"a: " + b"a" * 70_000, b"transfer-encoding: gzip\r\n\r\n"]
)
def test_a_broken_head_request_is_refused_without_a_body(rest: bytes, proxy: Proxy) -> None:
    head, body = answer_to(b"HEAD /livez HTTP/1.1\r\n" + rest, proxy)
    assert head.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
    assert b"content-length: " in head
    assert body == b""


def test_a_large_body_may_come_with_its_head(proxy: Proxy) -> None:
    text = BODY.replace(b"hi", b"hi " * 50_000)
    head, _ = answer_to(POST + b"content-length: %d\r\n\r\n" % len(text) + text, proxy)
    assert head.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "status"), [(b"", b""), (POST, b"HTTP/1.1 408 ")], ids=["a connection without a request", "half a head"]
)
def test_a_late_head_closes_the_connection(sent: bytes, status: bytes, upstream: ScriptedUpstream) -> None:
    with running_proxy(upstream.url, limits={"header_timeout": 0.05}) as proxy:
        head, _ = answer_to(sent, proxy)
        assert head.startswith(status)


def test_a_body_that_comes_too_slowly_is_refused(upstream: ScriptedUpstream) -> None:
    with running_proxy(upstream.url, limits={"body_timeout": 0.05, "body_rate": 1_000_000_000}) as proxy:
        head, body = answer_to(POST + b"content-length: 100\r\n\r\n{", proxy)
        assert head.startswith(b"HTTP/1.1 408 ")
        assert assert_openai_error(body)["code"] == "body_timeout"
        assert answer_to(REQUEST, proxy)[0].startswith(b"HTTP/1.1 200 ")


def test_an_idle_connection_makes_room_for_a_new_one(upstream: ScriptedUpstream) -> None:
    with running_proxy(upstream.url, limits={"connections": 1}) as proxy, connected(proxy) as idle:
        assert answer_to(REQUEST, proxy)[0].startswith(b"HTTP/1.1 200 ")
        assert rest_of(idle) == (b"", b"")


def test_the_connection_that_was_idle_longest_makes_room(upstream: ScriptedUpstream) -> None:
    ask = REQUEST.replace(b"connection: close\r\n", b"")

    def is_served(connection: socket.socket) -> bool:
        connection.sendall(ask)
        return connection.recv(65_536).startswith(b"HTTP/1.1 200 ")

    with running_proxy(upstream.url, limits={"connections": 3}) as proxy, ExitStack() as opened:
        first, second, third = (opened.enter_context(connected(proxy)) for _ in range(3))
        assert all(map(is_served, (second, third, first)))
        for oldest in (second, third):
            assert is_served(opened.enter_context(connected(proxy)))
            assert rest_of(oldest) == (b"", b"")
        assert is_served(first)


@pytest.mark.parametrize("limits", [{"connections": 2}, {"per_address": 2}])
def test_a_half_sent_request_makes_room_for_another(upstream: ScriptedUpstream, limits: dict[str, int]) -> None:
    behind = running_proxy(upstream.url, limits=limits, server=STRANGERS)
    with behind as proxy, connected(proxy) as first, connected(proxy) as second:
        for half in (first, second):
            half.sendall(REQUEST[:-1])
        assert answer_to(REQUEST, proxy)[0].startswith(b"HTTP/1.1 200 ")
        assert rest_of(first) == (b"", b"")


@contextmanager
def busy_proxy(upstream: ScriptedUpstream, **settings: Any) -> Iterator[Proxy]:
    """A proxy with one request whose reply does not come."""
    answered = Signal("the end of the test")
    upstream.reply(hang(answered))
    with running_proxy(upstream.url, **settings) as proxy, connected(proxy) as busy:
        busy.sendall(REQUEST)
        upstream.journal.await_arrival()
        yield proxy
        answered.set()


def test_the_requests_of_one_address_leave_connections_for_others(upstream: ScriptedUpstream) -> None:
    with busy_proxy(upstream, limits={"per_address": 1}, server=STRANGERS) as proxy:
        assert answer_to(b"", proxy)[0].startswith(b"HTTP/1.1 503 ")


def test_a_trusted_proxy_may_have_all_connections(upstream: ScriptedUpstream) -> None:
    with busy_proxy(upstream, limits={"per_address": 1}) as proxy:
        assert answer_to(REQUEST, proxy)[0].startswith(b"HTTP/1.1 200 ")


def test_a_connection_is_refused_while_all_work(upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture) -> None:
    with busy_proxy(upstream, limits={"connections": 1}) as proxy:
        for _ in range(3):
            head, body = answer_to(b"", proxy)
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in head
            assert assert_openai_error(body)["code"] == "overloaded"
    assert sum("connections are refused" in each for each in caplog.messages) == 1
