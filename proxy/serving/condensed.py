"""The ASGI apps of the API: for the condensed endpoints, for counting and compacting, and for everything else.

`CondensedEndpoint` reads a request, lets an `Exchange` decide on it and send it, and relays the reply.

`ReadOnly` sends the view that would be sent to the upstream's own counting or compaction. No turn is stored, and no
model is asked, unless the upstream has no compaction (`proxy/serving/compacting.py`). Clients compact their history by
the count, so it must agree with the usage that they are shown; if the upstream cannot count, the answer is the proxy's
own calibrated count. To be compacted, clients send their whole list, which may be too long by then, because the proxy
has condensed it for all other requests: the view goes as it stands.

`PassThrough` forwards requests unread. So do the others if a body is not to be read (`PassOn`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from time import perf_counter

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import controls
from proxy.condensing import account
from proxy.condensing.exchange import Exchange
from proxy.endpoints import compaction, endpoint_at, protocol_at
from proxy.endpoints.endpoint import Compacting, Endpoint
from proxy.errors import DEFECT, CredentialUnproven, HistoryUnavailable, ProxyError, UpgradeRefused, UpstreamUnavailable
from proxy.http.headers import ENCODING, encode_headers, encoding_of, first, is_event_stream, is_success
from proxy.http.token_limits import Spending
from proxy.knowledge.profiles import NO_TRIGGER, refuses_trigger
from proxy.log import LINE, RequestLine
from proxy.reasons import Action, Reason
from proxy.reply.watching import UsageRemover, WatchedReply
from proxy.request.keys import check_unread
from proxy.request.wire import ClientRequest
from proxy.services import Services
from proxy.serving.compacting import own_compaction, serve_compaction
from proxy.serving.layer import error_response
from proxy.serving.reading import (
    READ_WHOLE,
    AdmittedEndpoint,
    AdmittedRequest,
    ClientGone,
    PassOn,
    as_it_came,
    held_by_server,
    read_request,
    receive_body,
)
from proxy.serving.relay import KeepAlive, Relay
from proxy.sessions.supply import HeldByServer
from proxy.upstream import UpstreamReply, UpstreamRequest
from proxy.upstream.choice import Destination, destination_of
from proxy.values import json_or_none, word_at

REFUSED = (429, 503)  # statuses after which the proxy's own background calls pause
_CANNOT_COUNT = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CondensedEndpoint(AdmittedEndpoint):
    """What is served at an endpoint's path."""

    endpoint: Endpoint

    def serve(self, admitted: AdmittedRequest) -> Awaitable[None]:
        return _OneRequest(self.endpoint, admitted, admitted.services, admitted.scope[LINE]).serve()


@dataclass(slots=True)
class _OneRequest:
    """Serves one request. An exception becomes an error response, and its code is logged.

    If the client leaves, everything is cancelled.
    """

    endpoint: Endpoint
    admitted: AdmittedRequest
    services: Services
    line: RequestLine
    request: ClientRequest = field(init=False)  # set once the request has been read
    is_in_foreground: bool = False  # whether background calls wait for this request
    spending: Spending | None = None  # what it takes of its tenant's tokens, if these are bounded
    asks_after_reply: bool = False
    """Whether a local server is asked after the reply for the window of the model that it may have loaded."""
    is_replying: bool = False

    async def serve(self) -> None:
        services, admitted = self.services, self.admitted
        rest: ASGIApp | None = None
        services.telemetry.in_flight += 1
        try:
            self.request = await read_request(self.endpoint, admitted)
            self.line.model, self.line.upstream = self.request.model, self.request.upstream.name
            await admitted.client.unless_gone(self._answer(admitted.send))
            admitted.client.close()
        except PassOn as unread:
            rest = await pass_on_unread(admitted, unread)
        except ClientGone:
            if not self.is_replying:
                raise
        finally:
            if self.is_in_foreground:
                services.asking.lane_of(self.request.upstream.base_url).leave_foreground()
            if self.spending is not None:
                reported, is_refused = 0, bool(self.line.error)
                if (exchange := self.line.exchange) is not None:
                    reported, is_refused = exchange.spent, exchange.record.status >= HTTPStatus.BAD_REQUEST
                self.spending.end(reported, is_refused=is_refused)
            if self.asks_after_reply:
                services.discovered[self.request.upstream.base_url].ask_after_reply()
            services.telemetry.in_flight -= 1
        if rest is not None:
            await _answer(admitted, rest)

    async def _answer(self, send: Send) -> None:
        """Sends the response, or an error if there is none."""
        async with AsyncExitStack() as until_answered:
            self.request = self.request._replace(until_answered=until_answered)
            try:
                response = await self._response()
            except PassOn:
                raise
            except ProxyError as error:
                self.line.error = error.code or error.type
                if isinstance(error, HistoryUnavailable):
                    self.services.stored.outage.count_request(is_refused=True)
                response = error_response(error, self.endpoint.path)
            except Exception:  # noqa: BLE001
                _log.exception("serving the request failed")
                response = error_response(ProxyError(DEFECT), self.endpoint.path)
            self.is_replying = True
            if isinstance(response, Relay):
                await self._pass_on(response, send)
            else:
                await response(self.admitted.scope, self.admitted.receive, send)

    async def _pass_on(self, reply: Relay, send: Send) -> None:
        """Relays a reply; the pauses of a stream are filled, except under the strategy `off`."""
        interval, exchange = self.services.settings.keepalive_interval, self.line.exchange
        self.line.is_relayed = True
        is_off = exchange is None or exchange.decision.policy.pipeline.is_off
        keep_alive = None
        if interval and not is_off and self.request.body.values.get("stream") is True:
            keep_alive = KeepAlive(send, interval, self.endpoint.beat)
        try:
            await reply.pass_on(keep_alive.send if keep_alive else send)
        finally:
            self.line.is_complete |= reply.has_sent_all
            if reply.error is not None:
                self.line.error = reply.error.code or reply.error.type
                self.line.is_relayed = self.line.status == reply.reply.status  # else the error was sent in its place
            if keep_alive:
                await keep_alive.stop()

    async def _response(self) -> Relay | Response:
        """Decides on the request, forwards it, and returns the response that relays the reply."""
        services, address = self.services, self.request.upstream.base_url
        lane = services.asking.lane_of(address)
        exchange = self.line.exchange = await self._opened()
        if self.request.controls.dry_run:
            return _own_reply(account.dry_run(exchange.decision), exchange)
        decision = exchange.decision
        if decision.action is Action.DEGRADED and decision.reason.startswith("store-"):
            services.stored.outage.count_request()
        if not (decision.policy.pipeline.is_off or decision.policy.window.is_set):
            services.discovered[address].ask_if_due()
            self.asks_after_reply = True
        is_trigger = self._is_trigger(exchange)
        knows_none = is_trigger and not decision.policy.profile.compaction_trigger
        if knows_none and (own := await self._own_compaction(exchange)):
            return own
        # Not earlier: background calls yield to the foreground, and `decide` may wait for one that prepares its record.
        lane.enter_foreground()
        self.is_in_foreground = True
        await lane.cleared()
        try:
            reply = await exchange.send(partial(self._send_body, exchange))
        except UpstreamUnavailable as error:
            error.headers = exchange.headers(accepted=False)
            services.background.own(exchange.note_failed(error.status))
            raise
        is_refused = is_trigger and not knows_none and refuses_trigger(reply.status, exchange.error)
        if is_refused and (own := await self._own_compaction(exchange)):
            await reply.close()
            services.exchanges.refusals.knowledge.profiles.learn(self.request.lesson_scope, [NO_TRIGGER])
            return own
        if not is_success(reply.status):
            services.background.own(exchange.note_failed(reply.status))
            if self.request.until_answered is not None:
                await self.request.until_answered.aclose()  # the history has not changed: the next append may begin
        return self._relay(reply, exchange)

    async def _opened(self) -> Exchange:
        """The exchange, which has been decided on; raises `TokensSpent` before if the tenant has no tokens left."""
        services, request = self.services, self.request
        if services.token_budget is not None and not request.controls.dry_run:
            # Only the upstream can check what a login says: before that, it spends nothing of the tenant that it names.
            tenant = request.tenant if request.trust.accepted else self.admitted.owner.tenant
            self.spending = await services.token_budget.admit(tenant, request.body.data)
        try:
            exchange = await services.exchanges.open(request)
        except HeldByServer as held:
            raise held_by_server(request, held.reason) from None
        if self.spending is not None:
            self.spending.update(exchange.decision.forwarded_tokens)
        return exchange

    def _is_trigger(self, exchange: Exchange) -> bool:
        """Whether the request ends with a trigger for a compaction, which upstreams may refuse."""
        return bool(self.endpoint.compact_path) and exchange.decision.context.compacting is Compacting.SIGNAL

    async def _own_compaction(self, standing: Exchange) -> Response | None:
        """The proxy's own compaction, in place of the upstream's; None if there cannot be one."""
        try:
            made = await own_compaction(standing, self.request, self.services, is_trigger=True)
        except CredentialUnproven:
            return None
        if made is None:
            return None
        self.line.exchange = made.exchange
        return made.response

    async def _send_body(self, exchange: Exchange, sent: bytes) -> UpstreamReply:
        """Sends a body under the request's headers, and returns the upstream's answer."""
        services, request, base_url = self.services, self.request, self.request.upstream.base_url
        headers = request.headers
        if exchange.reads_reply:
            headers = [pair for pair in headers if pair[0] != b"accept-encoding"]
        if exchange.has_compaction:
            headers = compaction.accepting(headers)
        if request.encoded_body and sent is request.body.data:
            sent, headers = request.encoded_body, [*headers, *request.encoding_headers]
        self.admitted.place.ease()  # not when its reply begins, which may take a model minutes
        asked = UpstreamRequest(base_url, "POST", request.target, request.query, headers, sent)
        reply = await services.upstream.send(asked)
        services.callers.note_status(request.trust, reply.status, shares=not request.controls.no_store)
        if reply.status in REFUSED:
            # Noted here, because a refusal may never reach the client: a request after a search may be repeated.
            services.asking.lane_of(base_url).note_refusal(first(reply.headers, b"retry-after"))
        return reply

    def _relay(self, reply: UpstreamReply, exchange: Exchange) -> Relay:
        """The response; what a later request depends on is stored only if the upstream accepted this one."""
        taken, decision, endpoint = is_success(reply.status), exchange.decision, self.endpoint
        own_headers = encode_headers(exchange.headers(accepted=taken))
        relay = Relay(endpoint, self.admitted.client, reply, own_headers)
        if taken:
            capture = endpoint.capture(reply.headers) if exchange.captures else None
            relay.watched = WatchedReply(endpoint, reply.headers, capture)
            relay.settle = partial(self._settle, exchange, relay.watched)
            relay.must_settle = bool(decision.append_head)
            relay.follow = exchange.follow_up
            relay.start_task = partial(self.services.background.own, to_its_end=True)
            # A reply that came encoded all the same passes with its usage event.
            if decision.probed and is_event_stream(reply.headers) and not encoding_of(reply.headers):
                relay.editor = UsageRemover(endpoint)
        return relay

    def _settle(self, exchange: Exchange, watched: WatchedReply) -> Awaitable[None] | None:
        request = self.request
        waiting: Sequence[Callable[[], Awaitable[object]]] = ()
        if watched.is_answer:
            waiting = self.services.callers.accept(request.trust, shares=not request.controls.no_store)
        storing = exchange.settle(watched)
        if waiting:
            storing = _made(waiting, storing)
        return storing


async def _made(waiting: Iterable[Callable[[], Awaitable[object]]], storing: Awaitable[None] | None) -> None:
    """Makes the writes that waited until the caller was accepted, and then the session's own."""
    for write in waiting:
        await write()
    if storing is not None:
        await storing


def _own_reply(data: bytes | str, exchange: Exchange) -> Response:
    """The proxy's own reply to a request that was decided on but not sent."""
    response = Response(data, media_type="application/json")
    response.raw_headers.extend(encode_headers(exchange.headers(accepted=False)))
    return response


@dataclass(frozen=True, slots=True)
class ReadOnly(AdmittedEndpoint):
    """What is served where an endpoint's requests are counted, or where the upstream compacts its lists."""

    endpoint: Endpoint
    compacts: bool = False

    async def serve(self, admitted: AdmittedRequest) -> None:
        await _answer(admitted, await self._app(admitted))

    async def _app(self, admitted: AdmittedRequest) -> ASGIApp:
        try:
            asked = await read_request(self.endpoint, admitted)
            line: RequestLine = admitted.scope[LINE]
            line.model, line.upstream = asked.model, asked.upstream.name
            return await admitted.client.unless_gone(self._answer(asked, admitted))
        except CredentialUnproven:
            if asked.controls.dry_run:
                raise
            # Nothing stored is shown to the upstream for this caller: it judges the request as it came.
            return await pass_on_unread(admitted, as_it_came(asked, Reason.CREDENTIAL_UNPROVEN))
        except PassOn as unread:
            return await pass_on_unread(admitted, unread)

    async def _answer(self, asked: ClientRequest, admitted: AdmittedRequest) -> ASGIApp:
        """Sends the view, and relays the reply."""
        endpoint, services = self.endpoint, admitted.services
        path = endpoint.compact_path if self.compacts else endpoint.count_path
        # A dry run stores nothing and asks no model; it is one of a request at the path that answers its like.
        answering = asked.path.removesuffix(path.removeprefix(endpoint.path).encode())
        answered = asked._replace(path=answering)
        as_dry_run = answered._replace(controls=replace(asked.controls, dry_run=True))
        exchanges = services.exchanges
        try:
            exchange = await (exchanges.open_as_it_stands if self.compacts else exchanges.open)(as_dry_run)
        except HeldByServer as held:
            raise held_by_server(asked, held.reason) from None
        if asked.controls.dry_run:
            return _own_reply(account.dry_run(exchange.decision), exchange)
        if self.compacts:
            return await serve_compaction(answered, exchange, admitted)
        target = asked.upstream.base_url, "POST", asked.path or path.encode(), asked.query
        admitted.place.ease()
        headers = compaction.accepting(asked.headers) if exchange.has_compaction else asked.headers
        reply = await services.upstream.send(UpstreamRequest(*target, headers, exchange.decision.body))
        services.callers.note_status(asked.trust, reply.status, shares=not asked.controls.no_store)
        if reply.status in _CANNOT_COUNT:
            await reply.close()
            return _own_reply(json.dumps(endpoint.counted(exchange.decision.expected_tokens)), exchange)
        return Relay(endpoint, admitted.client, reply, encode_headers(exchange.headers(accepted=False)))


# -- passing on ------------------------------------------------------------------------------------------------

GENERATING = frozenset(  # the first path segments under `/v1/` of endpoints that ask a model, or hold what one is asked
    (
        *("completions", "responses", "conversations", "messages", "threads", "embeddings", "moderations"),
        *("images", "audio", "videos", "realtime"),
    )
)


class PassThrough(AdmittedEndpoint):
    """Forwards requests under `/v1/` without reading them, and relays the replies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if first(scope["headers"], b"upgrade"):
            raise UpgradeRefused
        await super().__call__(scope, receive, send)

    async def serve(self, admitted: AdmittedRequest) -> None:
        scope = admitted.scope
        if scope["method"] not in ("GET", "HEAD"):
            check_unread(admitted.owner.key)
        segment = scope["path"].removeprefix("/v1/").partition("/")[0]
        is_bypassed = scope["method"] == "POST" and segment in GENERATING
        own_headers = _note_bypass(admitted, Reason.NOT_CONDENSED_ENDPOINT) if is_bypassed else []
        await _answer(admitted, await _forward(admitted, own_headers))


async def _answer(admitted: AdmittedRequest, app: ASGIApp) -> None:
    admitted.scope[LINE].is_relayed = isinstance(app, Relay)
    await app(admitted.scope, admitted.receive, admitted.send)


async def pass_on_unread(admitted: AdmittedRequest, unread: PassOn) -> ASGIApp:
    """Forwards a request to a condensed endpoint that is not read; returns the app that relays the reply."""
    own_headers = _note_bypass(admitted, unread.reason)
    return await _forward(admitted, own_headers, unread)


def _note_bypass(admitted: AdmittedRequest, reason: Reason) -> list[tuple[str, str]]:
    """Notes a request that asks a model and is not condensed; returns the headers that tell the client."""
    admitted.scope[LINE].outcome = Action.BYPASSED, reason
    return [("X-Condenser-Action", Action.BYPASSED), ("X-Condenser-Reason", reason)]


async def _forward(
    admitted: AdmittedRequest, own_headers: list[tuple[str, str]], unread: PassOn | None = None
) -> ASGIApp:
    """The app that relays the reply. A long unread body is streamed, with its content length if the client sent one."""
    scope, client, received, started = admitted.scope, admitted.client, admitted.scope["headers"], perf_counter()
    endpoint = endpoint_at(scope["path"])
    length = first(received, b"content-length")
    has_body = length not in (None, "0") or first(received, b"transfer-encoding") is not None
    body = unread.body if unread else None
    content: bytes | AsyncIterator[bytes] = body or b""
    if has_body and body is None:
        if length is not None and length.isdigit() and int(length[:20]) <= READ_WHOLE:
            content = await receive_body(client, READ_WHOLE, admitted.place)
        else:
            content = client.body()
    upstream = (unread and unread.upstream) or await _upstream_unread(admitted, content)
    scope[LINE].upstream = upstream.name
    admitted.place.enter_upstream(upstream.name, upstream.in_flight)
    headers = upstream.forwarded(received, endpoint.key_header)
    if unread and unread.is_unpacked:
        headers = [pair for pair in headers if pair[0] != ENCODING]
    if length is not None and not isinstance(content, bytes):
        headers += [(b"content-length", length.encode())]
    await admitted.place.take(is_upload=not isinstance(content, bytes))
    admitted.place.ease()

    async def send() -> UpstreamReply:
        if isinstance(content, bytes):
            # A disconnect is noticed only after the client's body has been read to its end.
            async for _ in client.body():
                pass
        target = upstream.base_url, scope["method"], scope["raw_path"], scope["query_string"]
        return await admitted.services.upstream.send(UpstreamRequest(*target, headers, content))

    try:
        reply = await client.unless_gone(send())
    except ProxyError as error:
        error.headers = own_headers
        raise
    finally:
        scope[LINE].upstream_ms = (perf_counter() - started) * 1000
    return Relay(endpoint, client, reply, encode_headers(own_headers))


async def _upstream_unread(admitted: AdmittedRequest, content: bytes | AsyncIterator[bytes]) -> Destination:
    """The upstream of a request that is not read; of its JSON body the model is, if that matters and it came whole."""
    scope, services = admitted.scope, admitted.services
    given, model = controls.of_upstream(scope["headers"], services.permit), ""
    if isinstance(content, bytes) and any(each.models for each in services.destinations):
        model = word_at(await asyncio.to_thread(json_or_none, content), "model")
    return destination_of(services.destinations, protocol_at(scope["path"]), scope["headers"], model, given)
