"""The recorder: an ASGI app between a proxy and its upstream that records each forwarded request, byte for byte.

A request of the conversation carries its number in a header, which the recorder removes. A request without one is a
model call of the proxy's own, and its cost is read from the `usage` in the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.chat.loose_json import count_at, json_or_none

NUMBER = "x-demo-request"
_CHAT = "/chat/completions"


class Forwarded(NamedTuple):
    """A request as it reached the upstream; `number` is None for a call of the proxy's own."""

    number: int | None
    data: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The parsed request."""
        body: dict[str, Any] = json.loads(self.data)
        return body


class Recorder:
    """Passes requests on to an app, and records the chat completions among them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._forwarded: list[Forwarded] = []
        self.own_calls = 0
        self.own_tokens = 0

    def view(self, number: int) -> Forwarded | None:
        """The request that was forwarded under a number: the last attempt, if there were several."""
        return next((each for each in reversed(self._forwarded) if each.number == number), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Records a chat completion; passes everything else on."""
        if scope["type"] != "http" or not scope["path"].endswith(_CHAT):
            await self._app(scope, receive, send)
            return
        number = _number(scope)
        data = await _read_body(receive)
        self._forwarded.append(Forwarded(number, data))
        answer: list[bytes] = []
        kept = answer if number is None else None
        await self._app(
            _without_number(scope, own=number is None), _replay_body(data, receive), _filter_reply(send, kept)
        )
        if number is None:
            self.own_calls += 1
            self.own_tokens += total_tokens(b"".join(answer))


def _number(scope: Scope) -> int | None:
    number = dict(scope["headers"]).get(NUMBER.encode())
    return int(number) if number else None


def _without_number(scope: Scope, *, own: bool) -> Scope:
    """The request without our header. The answer to an own call must stay readable, so it may not be compressed."""
    dropped = {NUMBER.encode(), b"accept-encoding"} if own else {NUMBER.encode()}
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] not in dropped]}


async def _read_body(receive: Receive) -> bytes:
    data, more = b"", True
    while more:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
    return data


def _replay_body(data: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body again, and then what the client sends: a disconnect."""
    pending: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def _filter_reply(send: Send, kept: list[bytes] | None) -> Send:
    """A `send` that copies bodies to `kept` and removes `Server-Timing`, which would be taken for the outer proxy's."""

    async def filtered(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", []) if pair[0].lower() != b"server-timing"]
            message = {**message, "headers": headers}
        elif kept is not None:
            kept.append(message.get("body", b""))
        await send(message)

    return filtered


def total_tokens(answer: bytes) -> int:
    """The total tokens in an answer's `usage`; 0 if it has none."""
    document = json_or_none(answer)
    return count_at(document.get("usage") if isinstance(document, Mapping) else None, "total_tokens")
