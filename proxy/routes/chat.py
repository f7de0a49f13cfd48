"""`POST /v1/chat/completions`: the endpoint that condenses."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from proxy import controls, wire
from proxy.capture import capture_for
from proxy.decision import Decision
from proxy.errors import BodyTooLarge
from proxy.headers import encoded, first, to_upstream
from proxy.intake import ChatRequest
from proxy.relay import ClientGone, Incoming, Relay
from proxy.reporting import editor_for
from proxy.retrying import Answered
from proxy.routes.passthrough import CLIENT_CLOSED_REQUEST, pass_through
from proxy.services import Services
from proxy.upstream import UpstreamRequest
from proxy.watching import Watched

REFUSED = (429, 503)


async def chat(request: Request) -> Response:
    """Reads the request, lets the driver decide, forwards, and relays the reply."""
    services: Services = request.app.state.services
    if first(request.scope["headers"], b"content-encoding") not in (None, "identity"):
        return await pass_through(request, reason="encoded-body")
    incoming = Incoming(request.receive)
    with ExitStack() as under_way:
        under_way.enter_context(services.telemetry.under_way())
        try:
            data = await body_of(incoming, services.settings.limits.body)
            response = await incoming.unless_gone(_answer(services, read(request, services, data), incoming, under_way))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        if isinstance(response, Relay):
            response.when_over(under_way.pop_all().close)
    return response


async def body_of(incoming: Incoming, limit: int) -> bytes:
    """The request's body; raises `BodyTooLarge` as soon as it is."""
    parts: list[bytes] = []
    size = 0
    async for part in incoming.body():
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.")
        parts.append(part)
    return b"".join(parts)


def read(request: Request, services: Services, data: bytes) -> ChatRequest:
    """The request as the driver takes it; raises `BadRequest`."""
    headers = [(name.lower(), value) for name, value in request.scope["headers"]]
    body = wire.read(data, services.seen)
    model, suffix = controls.split_model(body.get("model"))
    peer = request.client.host if request.client else None
    return ChatRequest(
        tenant=services.tenants.tenant(headers, peer),
        headers=to_upstream(headers, services.own_key),
        body=body,
        model=model or "",
        renamed=suffix is not None,
        query=request.scope["query_string"],
        controls=controls.read(headers, body.get(wire.EXTENSION), suffix),
        asked_at=services.clock(),
    )


async def _answer(services: Services, chat_request: ChatRequest, incoming: Incoming, under_way: ExitStack) -> Response:
    services.asking.arrived()
    await services.learned.refresh(chat_request.model)
    decision = await services.condenser.decide(chat_request)
    under_way.callback(decision.let_go)
    if chat_request.controls.dry_run:
        return _dry_run(decision)
    services.telemetry.decided(decision)
    _want_window(services, decision, under_way)
    # Not earlier: a request that waits for what is prepared for it must not stand in its way.
    under_way.enter_context(services.asking.foreground())
    answered = await services.retrier.answered(
        chat_request, decision, lambda decided: services.upstream.send(_forwarded(services, chat_request, decided))
    )
    reply, decided = answered
    under_way.callback(decided.let_go)
    searched = await services.searcher.searched(
        decided,
        chat_request.model,
        reply,
        lambda body: services.upstream.send(replace(_forwarded(services, chat_request, decided), body=body)),
    )
    return _relay(services, incoming, chat_request, Answered(searched, decided))


def _want_window(services: Services, decision: Decision, under_way: ExitStack) -> None:
    """Where nobody has set the window, has the upstream's server asked: now, and when it has replied."""
    if not (decision.policy.window.is_set or decision.policy.pipeline.is_off):
        services.discovered.noticed()
        under_way.callback(services.discovered.replied)


def _forwarded(services: Services, chat_request: ChatRequest, decision: Decision) -> UpstreamRequest:
    headers = chat_request.headers
    if decision.head or decision.rounds or decision.probed or _more(services, decision):
        # The reply is read or changed, so it must come as it is.
        headers = [(name, value) for name, value in headers if name != b"accept-encoding"]
    return UpstreamRequest("POST", b"/v1/chat/completions", chat_request.query, headers, decision.body)


def _more(services: Services, decision: Decision) -> int:
    """Prompt tokens that the client is shown besides those that were forwarded."""
    return decision.left_out if services.settings.report_usage == "original" else 0


def _relay(services: Services, incoming: Incoming, chat_request: ChatRequest, answered: Answered) -> Relay:
    """What a later request depends on is stored only where the upstream took this one."""
    reply, decision = answered
    ours = encoded(decision.headers())
    if reply.status in REFUSED:
        services.asking.refused(None, first(reply.headers, b"retry-after"))
    if not 200 <= reply.status < 300:
        return Relay(incoming, reply, ours)
    capture = capture_for(first(reply.headers, b"content-type") or "") if decision.head else None
    watched = Watched(reply.headers, capture)
    settle = services.watcher.settling(chat_request, decision, watched)
    editor = editor_for(reply.headers, _more(services, decision), hides=decision.probed)
    return Relay(incoming, reply, ours, settle, watched, decision.follow, editor)


def _dry_run(decision: Decision) -> Response:
    response = Response(decision.dry_run(), media_type="application/json")
    response.raw_headers.extend(encoded(decision.headers()))
    return response
