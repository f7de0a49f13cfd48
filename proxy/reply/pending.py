"""What the client of a stream is told before its first byte is there, and how a reply goes on behind that. Pure.

Who is told anything has been given a status, 200, and a content type, that of events. Whatever comes then must fit
behind them: events pass as they come, a reply in one piece becomes an event, and an error takes the form that errors
have in the middle of a stream. Nothing behind them has a content encoding: that could not be said any more.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from proxy.condensing.decision import Action
from proxy.errors import ProxyError, UpstreamUnavailable
from proxy.http.content_encoding import Decoder, decoder
from proxy.http.headers import Headers, encoded, first
from proxy.http.sse import DONE, event, is_event_stream
from proxy.request.loose_json import json_or_none

COMMENT = b": keep-alive\n\n"
_HEAD: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_FINAL = frozenset(f"X-Condenser-{name}" for name in ("Session", "Session-Source", "Strategy", "Tokens-Before", "Head"))
"""Headers whose values no retry changes, so that they can be told as soon as there is a decision."""
_UNREADABLE = UpstreamUnavailable("The upstream's stream is encoded in a way that is not known.", code="upstream_error")
_MOST_QUOTED = 1_000  # characters of an error in another form than OpenAI's


def early_headers(decided: Iterable[tuple[str, str]]) -> Headers:
    """A head that leaves before its reply; `decided` are the headers of the decision, where there is one."""
    known = [pair for pair in decided if pair[0] in _FINAL]
    return [*_HEAD, *encoded([("X-Condenser-Action", Action.PENDING), *known])]


def beat(form: str, model: str, now: float) -> bytes:
    """One sign of life at a time in seconds; as a `chunk` it adds nothing to what a client makes of all chunks."""
    if form == "comment":
        return COMMENT
    nothing = {"index": 0, "delta": {}, "finish_reason": None}
    head = {"id": "chatcmpl-pending", "object": "chat.completion.chunk", "created": int(now), "model": model}
    return event(json.dumps({**head, "choices": [nothing]}).encode())


class Continuation(Protocol):
    """Makes events of a reply whose head cannot be passed on any more."""

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on, now that a chunk has come."""
        ...

    def end(self) -> bytes:
        """What is left when all has come."""
        ...


class Events:
    """A reply in events; `undoing` its encoding, None where that cannot be undone."""

    def __init__(self, undoing: Decoder | None) -> None:
        self._undoing = undoing
        self._has_flowed = self._is_lost = False

    def feed(self, chunk: bytes) -> bytes:
        """The chunk without its encoding; an error, once, where that cannot be undone."""
        if self._is_lost:
            return b""
        try:
            plain = self._undoing.feed(chunk) if self._undoing else None
        except zlib.error:
            plain = None
        if plain is None:
            self._is_lost = True
            return (b"\n\n" if self._has_flowed else b"") + error_event(_UNREADABLE)
        self._has_flowed = True
        return plain

    def end(self) -> bytes:
        """Nothing: an upstream ends its events itself."""
        return b""


class Whole:
    """A reply in one piece: an error, or a completion from a server that does not stream."""

    def __init__(self, status: int, undoing: Decoder | None) -> None:
        self._status = status
        self._undoing = undoing
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Keeps a chunk; nothing is passed on yet."""
        self._parts.append(chunk)
        return b""

    def end(self) -> bytes:
        """The whole reply as events."""
        try:
            data = self._undoing.feed(b"".join(self._parts)) if self._undoing else b""
        except zlib.error:
            data = b""
        return told(self._status, data)


def continuation(status: int, headers: Headers) -> Continuation:
    """How a reply with this head goes on."""
    undoing = decoder(first(headers, b"content-encoding") or "")
    return Events(undoing) if _is_good(status) and is_event_stream(headers) else Whole(status, undoing)


def may_wait(status: int, headers: Headers) -> bool:
    """Whether signs of life may be put before the body of a reply whose head is passed on.

    They would not fit into a length that it tells.
    """
    plain = first(headers, b"content-encoding") in (None, "identity")
    is_open = plain and first(headers, b"content-length") is None
    return is_open and _is_good(status) and is_event_stream(headers)


def told(status: int, data: bytes) -> bytes:
    """A reply in one piece as events: a completion as one chunk, all else as an error."""
    document = json_or_none(data)
    if isinstance(document, Mapping):
        if isinstance(document.get("error"), Mapping):
            # Between the tokens of a JSON text line ends are mere spaces, and inside of them there are none.
            return event(data.strip().replace(b"\r", b" ").replace(b"\n", b" "))
        if _is_good(status) and (chunk := _as_chunk(document)):
            return event(json.dumps(chunk).encode()) + DONE
    quoted = data.decode("utf-8", "replace").strip()[:_MOST_QUOTED]
    return error_event(UpstreamUnavailable(f"The upstream answered {status}: {quoted}", code="upstream_error"))


def error_event(error: ProxyError) -> bytes:
    """An error in the middle of a stream."""
    return event(error.to_json())


def _as_chunk(completion: Mapping[str, Any]) -> dict[str, Any] | None:
    """A completion as the one chunk of a stream; None where it is none."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not all(isinstance(each, Mapping) and "message" in each for each in choices):
        return None
    return {**completion, "object": "chat.completion.chunk", "choices": [_as_delta(each) for each in choices]}


def _as_delta(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if isinstance(calls, list):
        message = {
            **message,
            "tool_calls": [{"index": at, **call} for at, call in enumerate(calls) if isinstance(call, Mapping)],
        }
    rest = {key: value for key, value in choice.items() if key != "message"}
    return {**rest, "delta": message}


def _is_good(status: int) -> bool:
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
