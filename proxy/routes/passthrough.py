"""Everything else under `/v1/`: as it comes, in both directions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.decision import Action
from proxy.headers import Headers, encoded, first, to_upstream
from proxy.relay import ClientGone, Incoming, Relay
from proxy.services import Services
from proxy.upstream import UpstreamReply, UpstreamRequest

GENERATION = frozenset(("/v1/completions", "/v1/responses", "/v1/messages", "/v1/chat/completions"))
CLIENT_CLOSED_REQUEST = 499


async def pass_through(request: Request, reason: str = "") -> Response:
    """Forwards a request unread and relays the reply."""
    services: Services = request.app.state.services
    ours: Headers = []
    if request.method == "POST" and request.url.path in GENERATION:
        services.telemetry.bypassed(request.url.path, reason)
        ours = encoded([("X-Condenser-Action", Action.BYPASSED), *([("X-Condenser-Reason", reason)] if reason else [])])
    incoming = Incoming(request.receive)
    try:
        reply = await incoming.unless_gone(_send(request, incoming, services))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Relay(incoming, reply, ours)


async def _send(request: Request, incoming: Incoming, services: Services) -> UpstreamReply:
    forwarded = _forwarded(request, incoming, services)
    if isinstance(forwarded.body, bytes):
        async for _ in incoming.body():
            pass
    return await services.upstream.send(forwarded)


def _forwarded(request: Request, incoming: Incoming, services: Services) -> UpstreamRequest:
    """The request with its body as a stream, where it has one; its length is kept where it was given."""
    given = request.scope["headers"]
    headers = to_upstream(given, services.own_key)
    length = first(given, b"content-length")
    has_body = length not in (None, "0") or first(given, b"transfer-encoding") is not None
    if has_body and length is not None:
        headers.append((b"content-length", length.encode()))
    return UpstreamRequest(
        method=request.method,
        path=request.scope["raw_path"],
        query=request.scope["query_string"],
        headers=headers,
        body=incoming.body() if has_body else b"",
    )
