"""A plain HTTP client that normalises nothing: raw targets, any method, duplicate headers, single chunks.

Built on http.client, so what a test writes is what goes over the socket.
"""

import http.client
import json
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.recording import Headers, every, first
from tests.support.signals import BOUND


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Headers
    body: bytes

    def header(self, name: str) -> str | None:
        return first(self.headers, name)

    def every(self, name: str) -> list[str]:
        return every(self.headers, name)

    def json(self) -> Any:
        return json.loads(self.body)

    # What the proxy says of the request; a number is 0 where it says none.

    @property
    def action(self) -> str | None:
        return self.header("x-condenser-action")

    @property
    def reason(self) -> str | None:
        return self.header("x-condenser-reason")

    @property
    def trigger(self) -> str | None:
        return self.header("x-condenser-trigger")

    @property
    def window(self) -> str | None:
        return self.header("x-condenser-window")

    @property
    def session(self) -> str | None:
        return self.header("x-condenser-session")

    @property
    def condensation(self) -> str | None:
        return self.header("x-condenser-condensation")

    @property
    def branch(self) -> str | None:
        return self.header("x-condenser-branch")

    @property
    def strategy(self) -> str | None:
        return self.header("x-condenser-strategy")

    @property
    def tokens_before(self) -> int:
        return int(self.header("x-condenser-tokens-before") or 0)

    @property
    def tokens_after(self) -> int:
        return int(self.header("x-condenser-tokens-after") or 0)

    @property
    def headroom(self) -> int:
        return int(self.header("x-condenser-headroom") or 0)


def request(
    base: str, method: str, target: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()
) -> Answer:
    """Send one request and read the whole answer."""
    with opened(base, method, target, body, headers) as response:
        return Answer(response.status, response.getheaders(), response.read())


def post_json(base: str, target: str, payload: Any, headers: Iterable[tuple[str, str]] = ()) -> Answer:
    return request(base, "POST", target, json.dumps(payload).encode(), [*JSON, *headers])


Broken = http.client.IncompleteRead  # what reading a reply that was cut short raises
JSON = [("Content-Type", "application/json")]


@contextmanager
def opened(
    base: str, method: str, target: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()
) -> Iterator[http.client.HTTPResponse]:
    """The response with its head read; `read1()` returns each piece as it arrives."""
    with sent(base, method, target, body, headers) as connection:
        yield connection.getresponse()


@contextmanager
def sent(
    base: str, method: str, target: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()
) -> Iterator[http.client.HTTPConnection]:
    """A connection on which the request has been sent and nothing was read."""
    connection = http.client.HTTPConnection(_netloc(base), timeout=BOUND)
    connection._validate_path = lambda url: None  # type: ignore[attr-defined]  # raw targets on purpose
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        yield connection
    finally:
        connection.close()


def until(response: http.client.HTTPResponse, mark: bytes) -> bytes:
    """What has come of a response when these bytes are among it; fails where it ends without them."""
    came = b""
    while mark not in came:
        more = response.read1()
        assert more, came
        came += more
    return came


def _netloc(base: str) -> str:
    return urlsplit(base).netloc


def reset(connection: http.client.HTTPConnection) -> None:
    """Leave at once: close with a reset, as a killed client does."""
    assert connection.sock is not None
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sock.close()


def events(body: bytes) -> list[str]:
    """The data of each SSE event in a whole body."""
    lines = body.decode().splitlines()
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
