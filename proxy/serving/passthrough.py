"""Passes on everything else under `/v1/` unchanged, and chat completions that are not to be read."""

from __future__ import annotations

from time import perf_counter

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.endpoints.table import endpoint_at
from proxy.errors import ProxyError, UpgradeRefused
from proxy.http.headers import ENCODING, encode_headers, first, to_upstream
from proxy.log import LINE
from proxy.reasons import Action, Reason
from proxy.serving.reading import Arrival, Placed, Unread
from proxy.serving.relay import Relay
from proxy.upstream import UpstreamReply, UpstreamRequest

GENERATING = frozenset(
    (
        *("completions", "responses", "conversations", "messages", "threads", "embeddings", "moderations"),
        *("images", "audio", "videos", "realtime"),
    )
)
"""The first path segments under `/v1/` of endpoints that ask a model, or hold what one is asked."""

Pairs = list[tuple[str, str]]


class PassThrough(Placed):
    """Forwards requests without reading them and relays the replies, as an ASGI app."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; raises `ProxyError`."""
        if first(scope["headers"], b"upgrade"):
            raise UpgradeRefused
        await super().__call__(scope, receive, send)

    async def serve(self, arrival: Arrival) -> None:
        scope = arrival.scope
        segment = scope["path"].removeprefix("/v1/").partition("/")[0]
        is_bypassed = scope["method"] == "POST" and segment in GENERATING
        own_headers = _note_bypass(arrival, Reason.NOT_CONDENSED_ENDPOINT) if is_bypassed else []
        await arrival.answer(await _forward(arrival, _upstream_request(arrival), own_headers))


async def pass_unread(arrival: Arrival, unread: Unread) -> ASGIApp:
    """Forwards a request that would be condensed but is not read; returns what relays the reply."""
    own_headers = _note_bypass(arrival, unread.reason)
    forwarded = _upstream_request(arrival, unread.body)
    if unread.is_unpacked:
        headers = [(name, value) for name, value in forwarded.headers if name != ENCODING]
        forwarded = forwarded._replace(headers=headers)
    return await _forward(arrival, forwarded, own_headers)


def _note_bypass(arrival: Arrival, reason: Reason) -> Pairs:
    """Counts a request that asks a model and is not condensed; returns the headers that say so."""
    arrival.services.telemetry.record_bypass()
    arrival.scope[LINE].outcome = Action.BYPASSED, reason
    return [("X-Condenser-Action", Action.BYPASSED), ("X-Condenser-Reason", reason)]


async def _forward(arrival: Arrival, forwarded: UpstreamRequest, own_headers: Pairs) -> ASGIApp:
    scope, incoming, started = arrival.scope, arrival.incoming, perf_counter()

    async def send() -> UpstreamReply:
        if isinstance(forwarded.body, bytes):
            # A disconnect is noticed only after the client's body has been read to its end.
            async for _ in incoming.body():
                pass
        return await arrival.services.upstream.send(forwarded)

    try:
        reply = await incoming.unless_gone(send())
    except ProxyError as error:
        error.headers = own_headers
        raise
    finally:
        scope[LINE].upstream_ms = (perf_counter() - started) * 1000
    return Relay(endpoint_at(scope["path"]), incoming, reply, encode_headers(own_headers))


def _upstream_request(arrival: Arrival, body: bytes | None = None) -> UpstreamRequest:
    """The request to forward. A body that was not read is streamed, with its content length if the client sent one."""
    scope, received = arrival.scope, arrival.scope["headers"]
    headers = to_upstream(received, arrival.services.own_key, endpoint_at(scope["path"]).key_header)
    length = first(received, b"content-length")
    has_body = length not in (None, "0") or first(received, b"transfer-encoding") is not None
    if has_body and length is not None and body is None:
        headers.append((b"content-length", length.encode()))
    streamed = arrival.incoming.body() if has_body else b""
    return UpstreamRequest(
        scope["method"],
        scope["raw_path"],
        scope["query_string"],
        headers,
        streamed if body is None else body,
    )
