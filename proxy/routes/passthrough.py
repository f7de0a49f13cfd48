"""Everything else under `/v1/`: as it comes, in both directions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.decision import Action
from proxy.headers import Headers, encoded, first, to_upstream
from proxy.relay import ClientGone, Relay, unless_gone
from proxy.services import Services
from proxy.upstream import UpstreamRequest

GENERATION = frozenset(("/v1/completions", "/v1/responses", "/v1/messages", "/v1/chat/completions"))
CLIENT_CLOSED_REQUEST = 499


async def pass_through(request: Request, reason: str = "") -> Response:
    """Forwards a request unread and relays the reply."""
    services: Services = request.app.state.services
    ours: Headers = []
    if request.method == "POST" and request.url.path in GENERATION:
        services.telemetry.bypassed(request.url.path)
        ours = encoded([("X-Condenser-Action", Action.BYPASSED), *([("X-Condenser-Reason", reason)] if reason else [])])
    forwarded = _forwarded(request, services)
    if not isinstance(forwarded.body, bytes):
        return Relay(await services.upstream.send(forwarded), ours)
    try:
        return Relay(await unless_gone(request.receive, services.upstream.send(forwarded)), ours)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)


def _forwarded(request: Request, services: Services) -> UpstreamRequest:
    """The request with its body as a stream, where it has one; its length is kept where it was given."""
    incoming = request.scope["headers"]
    headers = to_upstream(incoming, services.own_key)
    length = first(incoming, b"content-length")
    has_body = length not in (None, "0") or first(incoming, b"transfer-encoding") is not None
    if has_body and length is not None:
        headers.append((b"content-length", length.encode()))
    return UpstreamRequest(
        method=request.method,
        path=request.scope["raw_path"],
        query=request.scope["query_string"],
        headers=headers,
        body=request.stream() if has_body else b"",
    )
