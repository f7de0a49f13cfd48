"""Everything else under `/v1/`: as it comes, in both directions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.condensing.decision import Action
from proxy.errors import ProxyError
from proxy.http.headers import encoded, first, to_upstream
from proxy.reply.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming, Relay
from proxy.routes.reading import Unread
from proxy.services import Services
from proxy.upstream import UpstreamReply, UpstreamRequest

GENERATING = frozenset(
    ("completions", "responses", "messages", "embeddings", "moderations", "images", "audio", "videos", "realtime")
)
"""What is under `/v1/` and asks a model, with all that is below it."""

Pairs = list[tuple[str, str]]


async def pass_through(request: Request) -> Response:
    """Forwards a request unread and relays the reply."""
    services: Services = request.app.state.services
    segment = request.scope["path"].removeprefix("/v1/").partition("/")[0]
    is_bypassed = request.method == "POST" and segment in GENERATING
    ours = _bypassed(services, f"/v1/{segment}") if is_bypassed else []
    incoming = Incoming(request.receive)
    return await _relayed(services, incoming, _forwarded(request, incoming, services), ours)


async def pass_unread(request: Request, incoming: Incoming, unread: Unread) -> Response:
    """The same for a completion that is not read."""
    services: Services = request.app.state.services
    ours = _bypassed(services, "/v1/chat/completions", unread.reason)
    return await _relayed(services, incoming, _forwarded(request, incoming, services, unread.body), ours)


def _bypassed(services: Services, path: str, reason: str = "") -> Pairs:
    """What is said of a request for a reply that is passed on as it is."""
    services.telemetry.bypassed(path, reason)
    return [("X-Condenser-Action", Action.BYPASSED), *([("X-Condenser-Reason", reason)] if reason else [])]


async def _relayed(services: Services, incoming: Incoming, forwarded: UpstreamRequest, ours: Pairs) -> Response:
    try:
        reply = await incoming.unless_gone(_sent(services, incoming, forwarded))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except ProxyError as error:
        error.headers = ours
        raise
    return Relay(incoming, reply, encoded(ours))


async def _sent(services: Services, incoming: Incoming, forwarded: UpstreamRequest) -> UpstreamReply:
    if isinstance(forwarded.body, bytes):
        async for _ in incoming.body():
            pass
    return await services.upstream.send(forwarded)


def _forwarded(request: Request, incoming: Incoming, services: Services, body: bytes | None = None) -> UpstreamRequest:
    """The request with its body, as a stream where it has one that was not read; then its length is kept if given."""
    given = request.scope["headers"]
    headers = to_upstream(given, services.own_key)
    length = first(given, b"content-length")
    has_body = length not in (None, "0") or first(given, b"transfer-encoding") is not None
    if has_body and length is not None and body is None:
        headers.append((b"content-length", length.encode()))
    return UpstreamRequest(
        method=request.method,
        path=request.scope["raw_path"],
        query=request.scope["query_string"],
        headers=headers,
        body=body if body is not None else incoming.body() if has_body else b"",
    )
