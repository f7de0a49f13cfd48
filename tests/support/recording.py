"""What went over a socket: one `Exchange` per request, kept in a `Journal`; `Tap` records around an app."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strategies.core.parsing import loads
from tests.support.signals import BOUND, Signal

Headers = list[tuple[str, str]]
CHAT = "/v1/chat/completions"


@dataclass
class Exchange:
    """One request as it came in, and the response as it went out."""

    method: str
    target: str  # raw path and query: nothing decoded, nothing normalised
    headers: Headers
    body: bytes = b""
    status: int | None = None
    response_headers: Headers = field(default_factory=list)
    sent: bytes = b""
    disconnected: Signal = field(default_factory=lambda: Signal("the client's disconnect"))
    finished: Signal = field(default_factory=lambda: Signal("the end of the exchange"))

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        return first(self.headers, name)

    def response_header(self, name: str) -> str | None:
        return first(self.response_headers, name)

    @cached_property
    def opening(self) -> str:
        """The content of the first message of a whole body, which is read once."""
        messages = self.json()["messages"]
        return str(messages[0].get("content", "")) if messages else ""

    def json(self) -> Any:
        return loads(self.body.decode("utf-8-sig"))


def first(headers: Headers, name: str) -> str | None:
    return next(iter(every(headers, name)), None)


def every(headers: Headers, name: str) -> list[str]:
    return [value for key, value in headers if key.lower() == name.lower()]


def exchange_of(scope: Scope) -> Exchange:
    query = scope["query_string"].decode("latin-1")
    target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    return Exchange(scope["method"], target, decoded(scope["headers"]))


def decoded(headers: Any) -> Headers:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


class Journal:
    """The exchanges of one server, in order of arrival; safe to read from the test's thread."""

    def __init__(self) -> None:
        self._exchanges: list[Exchange] = []
        self._arrived = threading.Condition()

    def add(self, exchange: Exchange) -> None:
        with self._arrived:
            self._exchanges.append(exchange)
            self._arrived.notify_all()

    def clear(self) -> None:
        """Forgets what has arrived."""
        with self._arrived:
            self._exchanges.clear()

    def __iter__(self) -> Iterator[Exchange]:
        return iter(self._to(None))

    def __len__(self) -> int:
        return len(self._exchanges)

    def _to(self, path: str | None) -> list[Exchange]:
        return [e for e in list(self._exchanges) if path is None or e.path == path]

    def to(self, path: str = CHAT) -> list[Exchange]:
        """What arrived at one path; a proxy may ask for other paths on its own account."""
        return self._to(path)

    def only(self, path: str = CHAT) -> Exchange:
        """The one exchange at this path; any other number fails the test."""
        exchanges = self._to(path)
        assert len(exchanges) == 1, f"{len(exchanges)} requests to {path}, expected one"
        return exchanges[0]

    def await_arrival(self, count: int = 1, *, path: str | None = CHAT, bound: float = BOUND) -> Exchange:
        """Block until `count` requests have arrived in full at `path`; return the last of them."""
        with self._arrived:
            arrived = self._arrived.wait_for(lambda: len(self._to(path)) >= count, bound)
        assert arrived, f"{len(self._to(path))} of {count} requests arrived at {path} within {bound} s"
        return self._to(path)[count - 1]


class Tap:
    """An app, recorded: messages pass unchanged, and the journal keeps both directions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.journal = Journal()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        self.journal.add(exchange)
        try:
            await self._app(scope, tapped_receive(exchange, receive), tapped_send(exchange, send))
        finally:
            exchange.finished.set()


def tapped_receive(exchange: Exchange, receive: Receive) -> Receive:
    async def recorded() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            exchange.body += message.get("body", b"")
        return message

    return recorded


def tapped_send(exchange: Exchange, send: Send) -> Send:
    async def recorded(message: Message) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            exchange.response_headers = decoded(message.get("headers", []))
        elif message["type"] == "http.response.body":
            exchange.sent += message.get("body", b"")
        await send(message)

    return recorded
