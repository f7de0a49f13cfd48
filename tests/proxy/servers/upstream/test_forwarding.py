"""Forwarded requests on the wire: what is sent, over which connection, and how often."""

import asyncio
import logging
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.opening import open_reply
from proxy.servers.upstream import Upstream, UpstreamReply, UpstreamRequest, forwarding
from proxy.settings.tables import UpstreamSettings
from tests.support.signals import BOUND

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
HANG_UP = b""
Script = Sequence[bytes]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers the requests of each connection by a script; an entry without a complete head ends the connection."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = iter(scripts)
        self.requests: list[bytes] = []
        self.connections = 0
        self.left = asyncio.Event()
        self.url = ""
        self.newest: socket.socket

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.newest = writer.get_extra_info("socket")
        for answer in next(self._scripts):
            try:
                self.requests.append(await _request(reader))
            except asyncio.IncompleteReadError:
                break  # the client left in the middle of its request
            writer.write(answer)
            if not answer.startswith(b"HTTP/1.1 2") or b"\r\n\r\n" not in answer:
                writer.close()
                return
        with suppress(ConnectionError):
            await reader.read()
        self.left.set()
        writer.close()

    def close_idle(self) -> None:
        """Ends the newest connection, at once: a client that sends then has not seen it yet."""
        with socket.socket(fileno=os.dup(self.newest.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"chunked" in head:
        return head + await reader.readuntil(b"0\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    return head + await reader.readexactly(int(length.partition(b":")[2]))


class ToServer(Upstream):
    """Sends every request to one address."""

    def __init__(self, base_url: str, max_connections: int) -> None:
        super().__init__(UpstreamSettings(max_connections=max_connections))
        self._to = base_url

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        return await super().send(request._replace(base_url=self._to))


@asynccontextmanager
async def serving(
    *scripts: Script, talk: Talk | None = None, tls: ssl.SSLContext | None = None, max_connections: int = 10
) -> AsyncIterator[tuple[Server, Upstream]]:
    server = Server(*scripts)
    listening = await asyncio.start_server(talk or server.talk, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"
    upstream = ToServer(server.url, max_connections)
    async with asyncio.timeout(BOUND), listening:
        try:
            yield server, upstream
        finally:
            await upstream.close()


def post(body: bytes | AsyncIterator[bytes] = b"{}", headers: Headers | None = None) -> UpstreamRequest:
    return UpstreamRequest("", "POST", b"/v1/x", b"", headers or [], body)


async def parts(*each: bytes) -> AsyncIterator[bytes]:
    for part in each:
        yield part


async def read(reply: UpstreamReply) -> bytes:
    body = b"".join([chunk async for chunk in reply.chunks()])
    await reply.close()
    return body


async def test_the_beginning_of_a_reply_that_came_with_its_head_is_looked_at_without_a_task() -> None:
    async with serving([OK]) as (_, upstream):
        reply = await upstream.send(post())
        tasks = asyncio.all_tasks()
        made: list[object] = []

        def make(loop: asyncio.AbstractEventLoop, steps: Any, **named: Any) -> asyncio.Task[Any]:
            made.append(steps)
            return asyncio.Task(steps, loop=loop, **named)

        asyncio.get_running_loop().set_task_factory(make)
        opened = await open_reply(CHAT_ENDPOINT, reply, holds=True)
        assert (made, asyncio.all_tasks()) == ([], tasks)
        assert await read(opened.reply) == b"ok"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
async def test_nothing_is_added_to_a_request_without_a_body(method: str) -> None:
    async with serving([EMPTY]) as (server, upstream):
        await (await upstream.send(UpstreamRequest("", method, b"/v1/x", b"a=%20", [(b"b", b"2")], b""))).close()
        host = server.url.removeprefix("http://").removesuffix("/v1")
        assert server.requests == [f"{method} /v1/x?a=%20 HTTP/1.1\r\nHost: {host}\r\nb: 2\r\n\r\n".encode()]


@pytest.mark.parametrize("odd", [b"caf\xc3\xa9", b"caf\xe9"], ids=["UTF-8", "Latin-1"])
async def test_headers_go_out_in_order_as_the_bytes_that_came_in(odd: bytes) -> None:
    headers = [(b"x-b", b"1"), (b"x-title", odd), (b"x-a", b""), (b"x-b", b"2")]
    async with serving([OK]) as (server, upstream):
        assert await read(await upstream.send(post(b"{}", headers))) == b"ok"
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert head.split(b"\r\n")[2:] == [b"x-b: 1", b"x-title: " + odd, b"x-a: ", b"x-b: 2", b"content-length: 2"]
        assert body == b"{}"


async def test_an_upload_keeps_the_form_of_its_length() -> None:
    async with serving([OK, OK], [OK]) as (server, upstream):
        await read(await upstream.send(post(parts(b"one", b"two"), [(b"content-length", b"6")])))
        await read(await upstream.send(post(parts(b"one", b"two"))))
        assert server.requests[0].endswith(b"content-length: 6\r\n\r\nonetwo")
        assert server.requests[1].endswith(b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


async def test_an_exception_that_ends_an_upload_is_raised_as_it_is() -> None:
    class Gone(Exception):
        pass

    async def broken() -> AsyncIterator[bytes]:
        yield b"one"
        raise Gone

    async with serving([OK]) as (server, upstream):
        with pytest.raises(Gone):
            await upstream.send(post(broken(), [(b"content-length", b"6")]))
        await server.left.wait()


async def test_an_answer_to_an_upload_may_come_before_its_end() -> None:
    unfinished = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"one"
        await unfinished.wait()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"one")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await reader.read()
        writer.close()
        unfinished.set()

    async with serving(talk=refuse) as (_, upstream):
        reply = await upstream.send(post(endless(), [(b"content-length", b"9")]))
        assert (reply.status, await read(reply)) == (413, b"big")
        await unfinished.wait()


LOOPS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})]


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("anyio_backend", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("first", [OK, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(("method", "body"), [("GET", b""), ("POST", b"{}"), ("POST", bytes(3_000_000))])
async def test_a_kept_connection_that_ended_is_replaced(method: str, body: bytes, first: bytes) -> None:
    async with serving([first], [OK]) as (server, upstream):
        await read(await upstream.send(post()))
        server.close_idle()
        reply = await upstream.send(UpstreamRequest("", method, b"/v1/x", b"", [], body))
        assert (reply.status, await read(reply)) == (200, b"ok")
        assert (server.connections, len(server.requests)) == (2, 2)
        assert server.requests[1].endswith(b"\r\n\r\n" + body)


async def test_a_request_is_sent_at_most_twice() -> None:
    async with serving([OK, HANG_UP], [HANG_UP]) as (server, upstream):
        await read(await upstream.send(post()))
        with pytest.raises(UpstreamUnavailable):
            await upstream.send(post())
        assert len(server.requests) == 3


async def test_ends_after_streams_give_each_a_new_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving([STREAM], [STREAM], [OK, OK]) as (server, upstream):
        await read(await upstream.send(post()))
        server.close_idle()
        await read(await upstream.send(post()))  # its connection stays open, and is not taken again
        assert [await read(await upstream.send(post())) for _ in range(2)] == [b"ok", b"ok"]
        assert (server.connections, len(server.requests)) == (3, 4)
    assert [each.getMessage() for each in caplog.records] == [
        f"the upstream {server.url.removesuffix('/v1')} closes connections after streams; for 600 s, none is used again"
    ]


async def test_one_end_after_a_stream_is_no_rule_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "ENDS_AFTER_STREAMS", 0.0)
    async with serving([STREAM], [STREAM, OK]) as (server, upstream):
        await read(await upstream.send(post()))
        server.close_idle()
        await read(await upstream.send(post()))
        assert await read(await upstream.send(post())) == b"ok"
        assert server.connections == 2


async def test_kept_connections_are_used_after_streams_and_left_by_uploads() -> None:
    async with serving([STREAM, STREAM, OK]) as (server, upstream):
        for _ in range(3):
            await read(await upstream.send(post()))
        assert server.connections == 1
    async with serving([OK, OK], [OK]) as (server, upstream):
        await read(await upstream.send(post()))
        await read(await upstream.send(post(parts(b"one", b"two"))))
        await read(await upstream.send(post()))
        assert server.connections == 2


@pytest.mark.parametrize(
    "scripts",
    [[[HANG_UP]], [[OK, b"HTTP/1.1 20"]], [[OK, b"HTTP/1.1 200 OK\r\nA: b\r\n"]]],
    ids=["on a new connection", "within the status line", "within the head"],
)
@pytest.mark.parametrize("anyio_backend", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_that_may_have_acted_is_not_sent_again(method: str, scripts: list[Script]) -> None:
    request = UpstreamRequest("", method, b"/v1/x", b"", [], b"")
    async with serving(*scripts) as (server, upstream):
        for _ in scripts[0][:-1]:
            await read(await upstream.send(request))
        with pytest.raises(UpstreamUnavailable) as raised:
            await upstream.send(request)
        assert raised.value.code == "upstream_unreachable"
        assert len(server.requests) == sum(map(len, scripts))


async def test_a_request_waits_for_a_connection_where_all_are_taken() -> None:
    async with serving([OK, OK], max_connections=1) as (server, upstream):
        first = await upstream.send(UpstreamRequest("", "GET", b"/v1/1", b"", [], b""))
        second = asyncio.ensure_future(upstream.send(UpstreamRequest("", "GET", b"/v1/2", b"", [], b"")))
        assert await read(first) == b"ok"
        assert await read(await second) == b"ok"
        assert server.connections == 1


async def test_closing_a_reply_before_its_end_closes_its_connection() -> None:
    unfinished = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"
    async with serving([unfinished], [OK]) as (server, upstream):
        reply = await upstream.send(post())
        assert await anext(reply.chunks()) == b"ok"
        await reply.close()
        await server.left.wait()
        assert await read(await upstream.send(post())) == b"ok"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key in the same file."""
    if which("openssl") is None:
        pytest.skip("TLS to an upstream is NOT TESTED: needs openssl")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=upstream -addext subjectAltName=IP:127.0.0.1"
    made = subprocess.run([*command.split(), "-keyout", "-"], capture_output=True, check=True)
    path.write_bytes(made.stdout)
    return path


async def test_only_an_authority_that_is_known_is_trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with serving([OK], tls=tls) as (server, upstream):
        with pytest.raises(UpstreamUnavailable):
            await upstream.send(post())
        assert server.requests == []
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serving([OK], tls=tls) as (_, upstream):
        assert await read(await upstream.send(post())) == b"ok"
