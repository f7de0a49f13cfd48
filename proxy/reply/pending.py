"""What is sent to the client of a stream before its first byte, and how a reply continues after that. Pure.

Once a keep-alive was sent, the client has the status 200 and the content type of server-sent events, and every reply
must fit them. Events are passed on as they come, a reply in one piece becomes an event, and an error takes the form of
errors in the middle of a stream. The continuation has no content encoding, since none can be announced any more.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from proxy.chat.loose_json import json_or_none
from proxy.errors import ProxyError, UpstreamUnavailable
from proxy.http.content_encoding import Decoder, decoder_for
from proxy.http.headers import Headers, encode_headers, first
from proxy.http.sse import DONE, event, is_event_stream
from proxy.reasons import Action

COMMENT = b": keep-alive\n\n"
_HEAD: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_FINAL = frozenset(f"X-Condenser-{name}" for name in ("Session", "Session-Source", "Strategy", "Tokens-Before", "Head"))
"""Headers whose values no retry changes, so that they can be sent as soon as there is a decision."""
_UNREADABLE = UpstreamUnavailable("The upstream's stream is encoded in a way that is not known.", code="upstream_error")
_MAX_QUOTED = 1_000  # characters of an error in another form than OpenAI's


def early_headers(decision_headers: Iterable[tuple[str, str]]) -> Headers:
    """The headers of a head that is sent before the reply; those of the decision are passed if there is one yet."""
    final = [pair for pair in decision_headers if pair[0] in _FINAL]
    return [*_HEAD, *encode_headers([("X-Condenser-Action", Action.PENDING), *final])]


def beat(form: str, model: str, now: float) -> bytes:
    """One sign of life: a comment, or in the form `chunk` a chunk that adds nothing to the message of a stream.

    `now` is in seconds since the epoch.
    """
    if form == "comment":
        return COMMENT
    empty_choice = {"index": 0, "delta": {}, "finish_reason": None}
    head = {"id": "chatcmpl-pending", "object": "chat.completion.chunk", "created": int(now), "model": model}
    return event(json.dumps({**head, "choices": [empty_choice]}).encode())


class Continuation(Protocol):
    """Turns a reply into the rest of an event stream, after its head could no longer be sent."""

    def feed(self, chunk: bytes) -> bytes:
        """Takes in the next chunk of the reply and returns what can be sent now."""
        ...

    def end(self) -> bytes:
        """Returns what is left to send at the end of the reply."""
        ...


class EventContinuation:
    """Continues with a reply in events; `decoder` is None for a content encoding that cannot be decoded."""

    def __init__(self, decoder: Decoder | None) -> None:
        self._decoder = decoder
        self._has_sent = self._has_failed = False

    def feed(self, chunk: bytes) -> bytes:
        """Returns the decoded chunk, or once an error event if the reply cannot be decoded."""
        if self._has_failed:
            return b""
        try:
            plain = self._decoder.feed(chunk) if self._decoder else None
        except zlib.error:
            plain = None
        if plain is None:
            self._has_failed = True
            return (b"\n\n" if self._has_sent else b"") + error_event(_UNREADABLE)
        self._has_sent = True
        return plain

    def end(self) -> bytes:
        """Returns nothing: an upstream ends its events itself."""
        return b""


class WholeContinuation:
    """Continues with a reply in one piece: an error, or a completion from a server that does not stream."""

    def __init__(self, status: int, decoder: Decoder | None) -> None:
        self._status = status
        self._decoder = decoder
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Keeps the chunk and returns nothing."""
        self._chunks.append(chunk)
        return b""

    def end(self) -> bytes:
        """Returns the whole reply as events."""
        try:
            data = self._decoder.feed(b"".join(self._chunks)) if self._decoder else b""
        except zlib.error:
            data = b""
        return reply_as_events(self._status, data)


def continuation(status: int, headers: Headers) -> Continuation:
    """The continuation for a reply with this status and these headers."""
    decoder = decoder_for(first(headers, b"content-encoding") or "")
    if _is_success(status) and is_event_stream(headers):
        return EventContinuation(decoder)
    return WholeContinuation(status, decoder)


def allows_beats(status: int, headers: Headers) -> bool:
    """Whether signs of life may be sent between this head and the body of the reply.

    They must be plain bytes of a successful event stream, and the head must not announce a length.
    """
    is_plain = first(headers, b"content-encoding") in (None, "identity")
    is_open = is_plain and first(headers, b"content-length") is None
    return is_open and _is_success(status) and is_event_stream(headers)


def reply_as_events(status: int, data: bytes) -> bytes:
    """A reply in one piece as events: a completion as one chunk and `[DONE]`, anything else as an error."""
    document = json_or_none(data)
    if isinstance(document, Mapping):
        if isinstance(document.get("error"), Mapping):
            # An event's data is one line. Line ends in JSON are only white space between tokens, never inside of them.
            return event(data.strip().replace(b"\r", b" ").replace(b"\n", b" "))
        if _is_success(status) and (chunk := _as_chunk(document)):
            return event(json.dumps(chunk).encode()) + DONE
    quoted = data.decode("utf-8", "replace").strip()[:_MAX_QUOTED]
    return error_event(UpstreamUnavailable(f"The upstream answered {status}: {quoted}", code="upstream_error"))


def error_event(error: ProxyError) -> bytes:
    """An error as an event in the middle of a stream."""
    return event(error.to_json())


def _as_chunk(completion: Mapping[str, Any]) -> dict[str, Any] | None:
    """A completion as the only chunk of a stream; None if the document is not a completion."""
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


def _is_success(status: int) -> bool:
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
