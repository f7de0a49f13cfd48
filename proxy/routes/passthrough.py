"""Passes on everything else under `/v1/` unchanged, and chat completions that are not to be read."""

from __future__ import annotations

from time import perf_counter

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from proxy.endpoints.table import endpoint_at
from proxy.errors import ProxyError
from proxy.http.content_encoding import ENCODING
from proxy.http.headers import encode_headers, first, to_upstream
from proxy.reasons import Action, Reason
from proxy.reply.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming, Relay
from proxy.services import Services
from proxy.serving import line_of
from proxy.upstream import UpstreamReply, UpstreamRequest

GENERATING = frozenset(
    (
        *("completions", "responses", "conversations", "messages", "threads", "embeddings", "moderations"),
        *("images", "audio", "videos", "realtime"),
    )
)
"""The first path segments under `/v1/` of endpoints that ask a model, or hold what one is asked."""

Pairs = list[tuple[str, str]]


class Unread(Exception):
    """The request is to be forwarded without being read; `body` is its body if that was received already.

    If the body `is_unpacked`, its encoding was undone.
    """

    def __init__(self, reason: Reason, body: bytes | None = None, *, is_unpacked: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.body = body
        self.is_unpacked = is_unpacked


async def pass_through(request: Request) -> ASGIApp:
    """Forwards a request without reading it and relays the reply."""
    services: Services = request.app.state.services
    segment = request.scope["path"].removeprefix("/v1/").partition("/")[0]
    is_bypassed = request.method == "POST" and segment in GENERATING
    own_headers = _note_bypass(request, services, Reason.NOT_CONDENSED_ENDPOINT) if is_bypassed else []
    incoming = Incoming(request.receive)
    return await _relay(request, incoming, _upstream_request(request, incoming, services), own_headers)


async def pass_unread(request: Request, incoming: Incoming, unread: Unread) -> ASGIApp:
    """Forwards a chat completion request that is not read and relays the reply."""
    services: Services = request.app.state.services
    own_headers = _note_bypass(request, services, unread.reason)
    forwarded = _upstream_request(request, incoming, services, unread.body)
    if unread.is_unpacked:
        headers = [(name, value) for name, value in forwarded.headers if name != ENCODING]
        forwarded = forwarded._replace(headers=headers)
    return await _relay(request, incoming, forwarded, own_headers)


def _note_bypass(request: Request, services: Services, reason: Reason) -> Pairs:
    """Counts a request that asks a model and is not condensed; returns the headers that say so."""
    services.telemetry.record_bypass()
    line_of(request.scope).outcome = Action.BYPASSED, reason
    return [("X-Condenser-Action", Action.BYPASSED), ("X-Condenser-Reason", reason)]


async def _relay(request: Request, incoming: Incoming, forwarded: UpstreamRequest, own_headers: Pairs) -> ASGIApp:
    services: Services = request.app.state.services
    line, started = line_of(request.scope), perf_counter()
    try:
        reply = await incoming.unless_gone(_send(services, incoming, forwarded))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except ProxyError as error:
        error.headers = own_headers
        raise
    finally:
        line.upstream_ms = (perf_counter() - started) * 1000
    return Relay(endpoint_at(request.scope["path"]), incoming, reply, encode_headers(own_headers))


async def _send(services: Services, incoming: Incoming, forwarded: UpstreamRequest) -> UpstreamReply:
    if isinstance(forwarded.body, bytes):
        # A disconnect is noticed only after the client's body has been read to its end.
        async for _ in incoming.body():
            pass
    return await services.upstream.send(forwarded)


def _upstream_request(
    request: Request, incoming: Incoming, services: Services, body: bytes | None = None
) -> UpstreamRequest:
    """The request to forward. A body that was not read is streamed, with its content length if the client sent one."""
    received = request.scope["headers"]
    headers = to_upstream(received, services.own_key, endpoint_at(request.scope["path"]).key_header)
    length = first(received, b"content-length")
    has_body = length not in (None, "0") or first(received, b"transfer-encoding") is not None
    if has_body and length is not None and body is None:
        headers.append((b"content-length", length.encode()))
    return UpstreamRequest(
        method=request.method,
        path=request.scope["raw_path"],
        query=request.scope["query_string"],
        headers=headers,
        body=body if body is not None else incoming.body() if has_body else b"",
    )
