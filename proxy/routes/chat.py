"""`POST /v1/chat/completions`: the endpoint that condenses."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from proxy.condensing.decision import Decision
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import encoded, first
from proxy.reply.capture import capture_for
from proxy.reply.keepalive import Awaited, KeepAlive
from proxy.reply.opening import UpstreamAnswer
from proxy.reply.pending import beat
from proxy.reply.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming, Relay
from proxy.reply.reporting import editor_for
from proxy.reply.watching import Watched
from proxy.request.intake import ChatRequest
from proxy.routes.passthrough import pass_unread
from proxy.routes.reading import Unread, read
from proxy.services import Services
from proxy.upstream import UpstreamRequest

REFUSED = (429, 503)


async def chat(request: Request) -> Response:
    """Reads the request; the response lets the driver decide, forwards, and relays the reply."""
    services: Services = request.app.state.services
    incoming = Incoming(request.receive)
    with ExitStack() as under_way:
        under_way.enter_context(services.telemetry.under_way())
        try:
            asked = await read(request, services, incoming)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Unread as unread:
            return await pass_unread(request, incoming, unread)
        keep_alive, rest = _keep_alive(services, asked), under_way.pop_all()
    answering = _Answering(services, asked, incoming, keep_alive, rest)
    return Awaited(incoming, keep_alive, answering.response, rest)


@dataclass(frozen=True, slots=True)
class _Answering:
    """One request on its way to its response; `under_way` is closed when all is over."""

    services: Services
    asked: ChatRequest
    incoming: Incoming
    keep_alive: KeepAlive
    under_way: ExitStack

    async def response(self) -> Response:
        """Has the driver decide, forwards, and gives the reply."""
        services, asked = self.services, self.asked
        services.asking.arrived()
        decision = await services.condenser.decide(asked)
        self.under_way.callback(decision.let_go)
        if asked.controls.dry_run:
            return _dry_run(decision)
        services.telemetry.decided(decision)
        await self._tell_keep_alive(decision)
        self._want_window(decision)
        # Not earlier: a request that waits for what is prepared for it must not stand in its way.
        self.under_way.enter_context(services.asking.foreground())
        self.keep_alive.is_elsewhere = True
        try:
            reply, decided = await services.retrier.answered(asked, decision, self._send, self.keep_alive.ours)
            self.under_way.callback(decided.let_go)
            again = partial(self._send, decided)
            searched = await services.searcher.searched(decided, asked.model, reply, again)
        except UpstreamUnavailable as error:
            error.headers = decision.headers(taken=False)
            raise
        finally:
            self.keep_alive.is_elsewhere = False
        return self._relay(searched, decided)

    async def _tell_keep_alive(self, decision: Decision) -> None:
        self.keep_alive.decided = decision.headers
        if decision.policy.pipeline.is_off:
            # Nothing of ours is in the way: the client waits for its upstream as it would without us.
            await self.keep_alive.silence()

    def _want_window(self, decision: Decision) -> None:
        """Where nobody has set the window, has the upstream's server asked: now, and when it has replied."""
        if not (decision.policy.window.is_set or decision.policy.pipeline.is_off):
            self.services.discovered.noticed()
            self.under_way.callback(self.services.discovered.replied)

    async def _send(self, decision: Decision, body: bytes | None = None) -> UpstreamAnswer:
        """The upstream's answer to a decision's body, or to another one under the same headers."""
        headers = self.asked.headers
        if self._reads(decision):
            headers = [(name, value) for name, value in headers if name != b"accept-encoding"]
        sent = decision.body if body is None else body
        if self.asked.packed and sent is self.asked.body.data:
            sent, headers = self.asked.packed, [*headers, *self.asked.packed_as]
        request = UpstreamRequest("POST", b"/v1/chat/completions", self.asked.query, headers, sent)
        reply = await self.services.upstream.send(request)
        if reply.status in REFUSED:
            # Here, for the client is not told of every refusal: what follows a search may be asked otherwise.
            self.services.asking.refused(None, first(reply.headers, b"retry-after"))
        return reply

    def _reads(self, decision: Decision) -> bool:
        """Whether the reply is read or changed, or no encoding of it could be told any more: so it must come plain."""
        read = decision.head or decision.rounds or decision.probed or decision.unpacked
        return bool(read or self.keep_alive.has_begun or self._more(decision))

    def _more(self, decision: Decision) -> int:
        """Prompt tokens that the client is shown besides those that were forwarded."""
        return decision.left_out if self.services.settings.report_usage == "original" else 0

    def _relay(self, reply: UpstreamAnswer, decision: Decision) -> Relay:
        """What a later request depends on is stored only where the upstream took this one."""
        taken = 200 <= reply.status < 300
        ours = encoded(decision.headers(taken=taken))
        if not taken:
            return Relay(self.incoming, reply, ours)
        capture = capture_for(first(reply.headers, b"content-type") or "") if decision.head else None
        watched = Watched(reply.headers, capture)
        settle = self.services.watcher.settling(self.asked, decision, watched)
        editor = editor_for(reply.headers, self._more(decision), hides=decision.probed)
        own = partial(self.services.tasks.own, to_its_end=True)
        return Relay(self.incoming, reply, ours, settle, watched, decision.follow, editor, own)


def _keep_alive(services: Services, asked: ChatRequest) -> KeepAlive:
    """What tells the client of a stream that it is waited for; silent for all others."""
    settings = services.settings
    speaks = settings.keepalive != "off" and asked.body.get("stream") is True and not asked.controls.dry_run
    return KeepAlive(
        settings.keepalive_interval if speaks else None,
        lambda: beat(settings.keepalive, asked.model, services.clock()),
    )


def _dry_run(decision: Decision) -> Response:
    response = Response(decision.dry_run(), media_type="application/json")
    response.raw_headers.extend(encoded(decision.headers(taken=False)))
    return response
