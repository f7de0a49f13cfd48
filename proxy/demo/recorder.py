"""The recorder: it stands between a proxy and its upstream and keeps what was forwarded, byte for byte.

A request of the conversation carries its number in a header that the recorder takes away. A request without one is
a call of the proxy's own, and what it cost is read from the usage in its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.request.loose_json import count_at, json_or_none

NUMBER = "x-demo-request"
_CHAT = "/chat/completions"


class Forwarded(NamedTuple):
    """A request as the upstream got it; `number` is None for a call of the proxy's own."""

    number: int | None
    data: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The request parsed."""
        found: dict[str, Any] = json.loads(self.data)
        return found


class Recorder:
    """Records around an app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._forwarded: list[Forwarded] = []
        self.own_calls = 0
        self.own_tokens = 0

    def view(self, number: int) -> Forwarded | None:
        """What was forwarded for one request; the last attempt where there were several."""
        return next((each for each in reversed(self._forwarded) if each.number == number), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Records a chat completion; everything else passes."""
        if scope["type"] != "http" or not scope["path"].endswith(_CHAT):
            await self._app(scope, receive, send)
            return
        number = _number(scope)
        data = await _whole(receive)
        self._forwarded.append(Forwarded(number, data))
        answer: list[bytes] = []
        kept = answer if number is None else None
        await self._app(_without_number(scope, own=number is None), _given(data, receive), _sent(send, kept))
        if number is None:
            self.own_calls += 1
            self.own_tokens += total_tokens(b"".join(answer))


def _number(scope: Scope) -> int | None:
    found = dict(scope["headers"]).get(NUMBER.encode())
    return int(found) if found else None


def _without_number(scope: Scope, *, own: bool) -> Scope:
    """The request without our header; the answer to an own call must be readable, so it may not be compressed."""
    dropped = {NUMBER.encode(), b"accept-encoding"} if own else {NUMBER.encode()}
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] not in dropped]}


async def _whole(receive: Receive) -> bytes:
    data, more = b"", True
    while more:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
    return data


def _given(data: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever comes: a disconnect."""
    left: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def given() -> Message:
        return left.pop() if left else await receive()

    return given


def _sent(send: Send, kept: list[bytes] | None) -> Send:
    """Sends on; an inner proxy's `Server-Timing` would be taken for the outer one's and goes."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", []) if pair[0].lower() != b"server-timing"]
            message = {**message, "headers": headers}
        elif kept is not None:
            kept.append(message.get("body", b""))
        await send(message)

    return sent


def total_tokens(answer: bytes) -> int:
    """The tokens that an answer says it cost; 0 where it does not."""
    document = json_or_none(answer)
    return count_at(document.get("usage") if isinstance(document, Mapping) else None, "total_tokens")
