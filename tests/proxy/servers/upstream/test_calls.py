"""Calls to an upstream: which address they go to, how much is read, and how a failure is told in words."""

import asyncio
import gzip
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from proxy.errors import UpstreamUnavailable
from proxy.servers.upstream import MAX_ANSWER, Upstream, UpstreamRequest, server_of
from proxy.servers.upstream.choice import Destination
from proxy.servers.upstream.messages import sentence
from proxy.settings.tables import UpstreamSettings, http_address
from tests.support.packing import PACKS
from tests.support.replies import Reply, hang, hang_up, raw
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream


async def target(base: str, path: bytes, query: bytes = b"") -> str:
    """Where a path of ours leads, as it stands in the request line."""
    with ScriptedUpstream() as upstream:
        client = Upstream(UpstreamSettings())
        try:
            reply = await client.send(UpstreamRequest(http_address(upstream.url + base), "GET", path, query, [], b""))
            assert [chunk async for chunk in reply.chunks()]
            await reply.close()
        finally:
            await client.close()
        return next(iter(upstream.journal)).target


@pytest.mark.parametrize(
    ("base", "path", "query", "seen"),
    [
        ("/v1", b"/v1/models", b"", "/v1/models"),
        ("/v1/", b"/v1/models", b"a=1&a=2", "/v1/models?a=1&a=2"),
        ("/openai/deployments/x", b"/v1/chat", b"api-version=1", "/openai/deployments/x/chat?api-version=1"),
        ("/v1", b"/v1/models/org%2Fname", b"q=%20", "/v1/models/org%2Fname?q=%20"),
        ("/a%20b", b"/v1/x", b"", "/a%20b/x"),
        ("/v1", b"/api/coding/v1/messages", b"", "/api/coding/v1/messages"),
        ("/team-a/v1", b"/v1beta/openai/chat", b"", "/team-a/v1beta/openai/chat"),
        ("/v1/account/gateway", b"/x/chat", b"", "/v1/account/gateway/x/chat"),
        ("/team-a", b"/v1-evil/x", b"", "/team-a/v1-evil/x"),
    ],
)
async def test_a_path_never_leads_above_the_base_to_the_base(base: str, path: bytes, query: bytes, seen: str) -> None:
    assert await target(base, path, query) == seen


async def body_read(body: bytes, encoding: str = "") -> bytes:
    """What a call of the proxy's own reads of an answer with this body."""
    with ScriptedUpstream() as upstream:
        upstream.reply(raw(body, "application/json", headers=[("content-encoding", encoding)] if encoding else []))
        client = Upstream(UpstreamSettings())
        try:
            return (await client.ask(upstream.base_url, "/v1/chat/completions", [], b"{}", 10)).body
        finally:
            await client.close()


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate", "br", "zstd"])
async def test_an_answer_is_read_whole(encoding: str) -> None:
    body = b'{"text":"%s"}' % (b"word " * 20_000)
    assert await body_read(PACKS[encoding](body) if encoding else body, encoding) == body


async def test_an_answer_or_page_without_end_is_cut(upstream: ScriptedUpstream) -> None:
    assert MAX_ANSWER <= len(await body_read(b"x" * 3 * MAX_ANSWER)) < 2 * MAX_ANSWER
    assert await body_read(gzip.compress(bytes(60_000_000)), "gzip") == b""
    assert await body_read(b"{}", "compress") == b""
    upstream.answer(lambda request: raw(b"x" * 5_000_000, "application/json"))
    client = Upstream(UpstreamSettings())
    assert (
        1_000 < len((await client.page(Destination("up", upstream.base_url), "/models", 5.0, 1_000)).body) < 1_000_000
    )
    await client.close()


async def test_hanging_up_is_unreachable_and_silence_is_late(upstream: ScriptedUpstream) -> None:
    never = Signal("the end of the test")
    upstream.reply(hang_up(), hang(never))
    client = Upstream(UpstreamSettings(read_timeout=0.1))
    for code in ("upstream_unreachable", "upstream_timeout"):
        with pytest.raises(UpstreamUnavailable) as raised:
            await client.ask(upstream.base_url, "/v1/chat/completions", [], b"{}", 0.1)
        assert raised.value.code == code
    never.set()
    await client.close()


def test_a_server_is_known_by_its_scheme_host_and_port() -> None:
    for same in ("http://up:8000/v1", "http://up:8000/other/v1", "http://UP:8000"):
        assert server_of(same) == "http://up:8000/"
    for other, server in (("https://up:8000/v1", "https://up:8000/"), ("http://up/v1", "http://up/")):
        assert server_of(other) == server


async def test_a_cookie_of_one_reply_is_sent_with_no_other_call(upstream: ScriptedUpstream) -> None:
    upstream.reply(Reply(200, (("content-length", "0"), ("set-cookie", "caller=first; Path=/"))))
    client = Upstream(UpstreamSettings())
    await client.ask(upstream.base_url, "/v1/chat/completions", [], b"{}", 5.0)
    await client.page(Destination("up", upstream.base_url), "/models", 5.0, 1_000)
    assert [exchange.header("cookie") for exchange in upstream.journal] == [None, None]
    await client.close()


@pytest.mark.parametrize(
    ("base", "listed", "beside"),
    [
        ("/v1", "/v1/models", "/props"),
        ("/api/v1/", "/api/v1/models", "/api/props"),
        ("/openai", "/openai/models", "/openai/props"),
    ],
)
async def test_a_page_is_below_the_base_or_beside_v1(base: str, listed: str, beside: str) -> None:
    with ScriptedUpstream() as upstream:
        client = Upstream(UpstreamSettings())
        await client.page(Destination("up", http_address(upstream.url + base), "ours"), "/models", 5.0, 1_000)
        await client.page(Destination("up", http_address(upstream.url + base)), "/props", 5.0, 1_000, beside_v1=True)
        asked = [(each.method, each.target, each.header("authorization")) for each in upstream.journal]
        assert asked == [("GET", listed, "Bearer ours"), ("GET", beside, None)]
        await client.close()


NO_HTTP = b"SSH-2.0-OpenSSH_9.6\r\n\r\n"
REFUSED = "The upstream cannot be reached: connection refused."
BROKEN_OFF = "The upstream broke off the connection."
PLAIN = "The upstream cannot be reached: TLS: wrong version number; perhaps the server speaks plain HTTP."


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[str]:
    """Host and port of a server that says these bytes and hangs up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def messages_of_both_clients(base_url: str) -> list[str]:
    """The error of a client's request, and of a call of the proxy's own."""
    upstream = Upstream(UpstreamSettings())
    messages = []
    try:
        for call in (
            upstream.send(UpstreamRequest(base_url, "GET", b"/v1/models", b"", [], b"")),
            upstream.probe(Destination("up", base_url)),
        ):
            with pytest.raises(UpstreamUnavailable) as raised:
                await call
            messages.append(raised.value.message)
    finally:
        await upstream.close()
    return messages


async def test_refused_connections_and_odd_chains_of_errors_are_told() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert await messages_of_both_clients(f"http://127.0.0.1:{bound.getsockname()[1]}/v1") == [REFUSED] * 2
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert sentence(one) == "The upstream cannot be reached: the connection failed."


@pytest.mark.parametrize(
    ("scheme", "answer", "says"),
    [
        ("https", NO_HTTP, PLAIN),
        ("http", NO_HTTP, "The upstream's answer is not HTTP."),
        ("http", b"", BROKEN_OFF),
        ("http", b"HTTP/1.1 200 OK\r\ncontent-le", BROKEN_OFF),
    ],
)
async def test_an_odd_server_is_described_in_words(scheme: str, answer: bytes, says: str) -> None:
    async with server(answer) as place:
        assert await messages_of_both_clients(f"{scheme}://{place}/v1") == [says] * 2


def raised_from(*errors: BaseException) -> BaseException:
    """The first of these errors, each raised from the next."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def not_trusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate (_ssl.c:1006)")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (socket.gaierror(-2, "Name or service not known"), "cannot be reached: no such host."),
        (not_trusted(), "cannot be reached: TLS: self-signed certificate."),
        (ssl.SSLError(1, "something"), "cannot be reached: the TLS handshake failed."),
        (OSError(113, "No route to host"), "cannot be reached: no route to the host."),
        (OSError(24, "Too many open files"), "cannot be reached: the connection failed."),
        (ConnectionResetError(104, "Connection reset by peer"), "broke off the connection."),
        (ExceptionGroup("multiple connection attempts failed", [ConnectionRefusedError(111, "x")]), REFUSED[-19:]),
    ],
)
async def test_the_systems_error_below_a_librarys_decides_the_message(error: Exception, says: str) -> None:
    assert sentence(raised_from(RuntimeError("All connection attempts failed"), error)).endswith(says)
