"""Heads of replies are sent with the first part of the body, or alone if nothing follows at once."""

import asyncio
import socket
from collections.abc import Iterable
from functools import partial
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.http.connection import Connection, ConnectionBounds, JoiningTransport
from proxy.settings import LimitSettings
from tests.support.server import serve
from tests.support.signals import BOUND, Signal

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
HTTP = partial(Connection, ConnectionBounds(LimitSettings(), 100))
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


class _Written(asyncio.Transport):
    """A transport that records the bytes of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.calls.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


async def test_a_head_is_sent_with_the_first_body_part() -> None:
    written = _Written()
    joining = JoiningTransport(written)
    joining.write(HEAD)
    assert written.calls == []
    joining.write(b"ab")
    joining.write(b"cd")
    assert written.calls == [HEAD + b"ab", b"cd"]
    await asyncio.sleep(0)
    assert written.calls == [HEAD + b"ab", b"cd"]


async def test_a_head_without_a_body_is_sent_alone() -> None:
    written = _Written()
    joining = JoiningTransport(written)
    joining.write(HEAD)
    await asyncio.sleep(0)
    assert written.calls == [HEAD]
    joining.write(b"abcd")
    assert written.calls == [HEAD, b"abcd"]


async def test_a_head_is_sent_before_its_connection_is_closed() -> None:
    written = _Written()
    joining = JoiningTransport(written)
    joining.write(HEAD)
    joining.close()
    await asyncio.sleep(0)
    assert (written.calls, joining.is_closing()) == ([HEAD], True)


async def test_nothing_is_written_to_a_connection_that_has_gone_meanwhile() -> None:
    written = _Written()
    JoiningTransport(written).write(HEAD)
    written.close()
    await asyncio.sleep(0)
    assert written.calls == []


def _answering(body: bytes, *, status: int = 200) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app


def _received(url: str, request: bytes) -> bytes:
    """All bytes that a server sends until it closes the connection."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), BOUND) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_replies_on_one_connection_come_whole_and_in_order() -> None:
    large = b"x" * 300_000
    with serve(_answering(large), lifespan="off", http=HTTP) as url:
        said = _received(url, GET + LAST)
    assert said.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert said.count(b"\r\n\r\n493e0\r\n" + large + b"\r\n0\r\n\r\n") == 2


def test_a_client_has_the_head_while_the_body_is_still_awaited() -> None:
    body_is_due = Signal()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await body_is_due.reached()
        await send({"type": "http.response.body", "body": b"late"})

    with serve(app, lifespan="off", http=HTTP) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), BOUND) as connection:
            connection.sendall(GET)
            assert connection.recv(65_536).endswith(b"\r\n\r\n")
            body_is_due.set()
            assert connection.recv(65_536) == b"late"
