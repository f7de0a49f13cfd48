"""Everything else under `/v1/`: as it comes, in both directions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.decision import Action
from proxy.headers import Headers, encoded, first, to_upstream
from proxy.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming, Relay
from proxy.services import Services
from proxy.upstream import UpstreamReply, UpstreamRequest

GENERATING = frozenset(
    ("completions", "responses", "messages", "embeddings", "moderations", "images", "audio", "videos", "realtime")
)
"""What is under `/v1/` and asks a model, with all that is below it."""


async def pass_through(request: Request, reason: str = "") -> Response:
    """Forwards a request unread and relays the reply; a `reason` says why a completion is not read."""
    services: Services = request.app.state.services
    ours: Headers = []
    segment = "chat/completions" if reason else request.scope["path"].removeprefix("/v1/").partition("/")[0]
    if request.method == "POST" and (reason or segment in GENERATING):
        services.telemetry.bypassed(f"/v1/{segment}", reason)
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
