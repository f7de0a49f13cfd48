"""`POST /v1/chat/completions`: the endpoint whose history is condensed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from proxy.condenser import Exchange
from proxy.condensing import account
from proxy.condensing.decision import Decision
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import encode_headers, first, is_success
from proxy.log import RequestLine
from proxy.reply.keepalive import KeepAlive, beat
from proxy.reply.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming, Relay
from proxy.reply.reporting import editor_for
from proxy.reply.watching import WatchedReply, capture_for
from proxy.request.chat import ChatRequest
from proxy.routes.passthrough import pass_unread
from proxy.routes.pending_response import PendingResponse
from proxy.routes.reading import Unread, read
from proxy.services import Services
from proxy.serving import line_of
from proxy.upstream import UpstreamReply, UpstreamRequest

REFUSED = (429, 503)
"""Statuses after which the proxy's own background calls pause."""


async def chat(request: Request) -> Response:
    """Reads the request; the response then has the condenser decide, forwards, and relays the reply."""
    services: Services = request.app.state.services
    incoming = Incoming(request.receive)
    with ExitStack() as under_way:
        under_way.enter_context(services.telemetry.under_way())
        try:
            chat_request = await read(request, services, incoming)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Unread as unread:
            return await pass_unread(request, incoming, unread)
        line = line_of(request.scope)
        line.model = chat_request.model
        keep_alive, still_open = _keep_alive(services, chat_request), under_way.pop_all()
    serving = _Serving(services, chat_request, incoming, keep_alive, still_open, line)
    return PendingResponse(incoming, keep_alive, serving.response, still_open, line)


@dataclass(frozen=True, slots=True)
class _Serving:
    """One request as it is served."""

    services: Services
    request: ChatRequest
    incoming: Incoming
    keep_alive: KeepAlive
    under_way: ExitStack
    """What is to be closed when the response has been sent or has failed."""
    line: RequestLine

    async def response(self) -> Response:
        """Has the condenser decide, forwards the request, and returns the response that relays the reply."""
        services, request = self.services, self.request
        services.asking.note_arrival()
        exchange = await services.condenser.exchange(request)
        self.line.decided = exchange
        if request.controls.dry_run:
            return _dry_run(exchange)
        services.telemetry.record_decision(exchange.decision, exchange.timing.ours)
        await self._set_up_keep_alive(exchange)
        self._ask_for_window(exchange.decision)
        # Not earlier: background calls yield to the foreground, and `decide` may wait for one that prepares its record.
        self.under_way.enter_context(services.asking.foreground())
        self.keep_alive.waits_for_upstream = True
        try:
            reply = await exchange.send(partial(self._send, exchange), self.keep_alive.own_work)
        except UpstreamUnavailable as error:
            error.headers = exchange.headers(accepted=False)
            raise
        finally:
            self.keep_alive.waits_for_upstream = False
        return self._relay(reply, exchange)

    async def _set_up_keep_alive(self, exchange: Exchange) -> None:
        self.keep_alive.decision_headers = exchange.headers
        if exchange.decision.policy.pipeline.is_off:
            # The proxy adds no delay: the client waits for its upstream as it would without the proxy.
            await self.keep_alive.disable()

    def _ask_for_window(self, decision: Decision) -> None:
        """Has the upstream's server asked for its window, now and after the reply, unless that is set or unused."""
        if not (decision.policy.window.is_set or decision.policy.pipeline.is_off):
            self.services.discovered.ask_if_due()
            self.under_way.callback(self.services.discovered.ask_after_reply)

    async def _send(self, exchange: Exchange, sent: bytes) -> UpstreamReply:
        """Sends a body under the request's headers, and returns the upstream's answer."""
        headers = self.request.headers
        if exchange.reads_reply or self.keep_alive.has_sent_head or self._extra_tokens(exchange.decision):
            headers = [(name, value) for name, value in headers if name != b"accept-encoding"]
        if self.request.encoded_body and sent is self.request.body.data:
            sent, headers = self.request.encoded_body, [*headers, *self.request.encoding_headers]
        request = UpstreamRequest("POST", b"/v1/chat/completions", self.request.query, headers, sent)
        reply = await self.services.upstream.send(request)
        try:
            shares = not self.request.controls.no_store
            await self.services.callers.note(self.request.trust, reply.status, shares=shares)
        except BaseException:
            await reply.close()
            raise
        if reply.status in REFUSED:
            # Noted here, because not every refusal reaches the client: a request after a search may be repeated.
            self.services.asking.note_refusal(None, first(reply.headers, b"retry-after"))
        return reply

    def _extra_tokens(self, decision: Decision) -> int:
        """Prompt tokens that the reported usage has in addition to those that were forwarded."""
        return decision.tokens_saved if self.services.settings.report_usage == "original" else 0

    def _relay(self, reply: UpstreamReply, exchange: Exchange) -> Relay:
        """The response; what a later request depends on is stored only if the upstream accepted this one."""
        taken, decision = is_success(reply.status), exchange.decision
        own_headers = encode_headers(exchange.headers(accepted=taken))
        if not taken:
            return Relay(self.incoming, reply, own_headers)
        capture = capture_for(first(reply.headers, b"content-type") or "") if decision.head else None
        watched = WatchedReply(reply.headers, capture)
        settle = partial(exchange.settle, watched)
        editor = editor_for(reply.headers, self._extra_tokens(decision), removes_usage=decision.probed)
        start_task = partial(self.services.background.own, to_its_end=True)
        relay = Relay(self.incoming, reply, own_headers, settle, watched, exchange.follow_up, editor, start_task)
        relay.must_settle = bool(decision.head)
        return relay


def _keep_alive(services: Services, request: ChatRequest) -> KeepAlive:
    """The keep-alive of a request, which sends beats only for a stream and if the settings want them."""
    settings = services.settings
    is_wanted = settings.keepalive != "off" and request.body.get("stream") is True and not request.controls.dry_run
    return KeepAlive(
        settings.keepalive_interval if is_wanted else None,
        lambda: beat(settings.keepalive, request.model, services.clock()),
    )


def _dry_run(exchange: Exchange) -> Response:
    response = Response(account.dry_run(exchange.decision), media_type="application/json")
    response.raw_headers.extend(encode_headers(exchange.headers(accepted=False)))
    return response
