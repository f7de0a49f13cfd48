"""`POST /v1/chat/completions`: the endpoint whose history is condensed.

A body that cannot be read is refused, with two exceptions: a body in an encoding that the proxy does not decode, and a
body that is not to be changed anyway (strategy `off`). These are forwarded as they came.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.condenser import Exchange
from proxy.condensing import account
from proxy.condensing.decision import Decision
from proxy.endpoints.endpoint import Endpoint
from proxy.errors import DEFECT, BadRequest, BodyTooLarge, ProxyError, UpstreamUnavailable
from proxy.http.admission import PLACE, Place
from proxy.http.content_encoding import ENCODING, decode_body, decoder_for, encoding_of
from proxy.http.headers import Headers, encode_headers, first, is_success, to_upstream
from proxy.log import RequestLine
from proxy.reasons import Reason
from proxy.reply.keepalive import COMMENT, KeepAlive
from proxy.reply.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming, Relay
from proxy.reply.watching import WatchedReply, editor_for
from proxy.request import controls, wire
from proxy.request.callers import OWNER, Owner
from proxy.request.client_request import ClientRequest
from proxy.request.controls import Controls
from proxy.request.scanning import EXTENSION
from proxy.routes.passthrough import Unread, pass_unread
from proxy.services import Services
from proxy.serving import error_response, line_of
from proxy.upstream import UpstreamReply, UpstreamRequest

REFUSED = (429, 503)
"""Statuses after which the proxy's own background calls pause."""
_MAX_DIGITS = 20  # of a content length that are read
_log = logging.getLogger(__name__)


async def chat(endpoint: Endpoint, request: Request) -> ASGIApp:
    """Reads the request; the app that it returns then has the condenser decide, forwards, and relays the reply."""
    services: Services = request.app.state.services
    incoming = Incoming(request.receive)
    with ExitStack() as under_way:
        under_way.enter_context(services.telemetry.under_way())
        try:
            client_request = await read_request(endpoint, request, services, incoming)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Unread as unread:
            return await pass_unread(request, incoming, unread)
        line = line_of(request.scope)
        line.model = client_request.model
        keep_alive = _keep_alive(services, client_request)
        return _Serving(services, client_request, incoming, keep_alive, under_way.pop_all(), line)


@dataclass(frozen=True, slots=True)
class _Serving:
    """Serves one request, as an ASGI app. An exception becomes an error response, and is noted in the log's line.

    If the client leaves, everything is cancelled.
    """

    services: Services
    request: ClientRequest
    incoming: Incoming
    keep_alive: KeepAlive
    under_way: ExitStack
    """What is to be closed when the response has been sent or has failed."""
    line: RequestLine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits for the response and sends it, or an error in its place."""
        with self.under_way:
            keeping_alive = self.keep_alive.start(send)
            try:
                response = await self._response()
                await response(scope, receive, keeping_alive)
                await self.keep_alive.close()
            except BaseException:
                self.incoming.close()
                await self.keep_alive.stop()
                raise
            self.incoming.close()

    async def _response(self) -> ASGIApp:
        try:
            return await self.incoming.unless_gone(self._answer())
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except ProxyError as error:
            self.line.error = error.code or error.type
            return error_response(error, self.request.body.endpoint.path)
        except Exception:  # noqa: BLE001
            _log.exception("a request failed")
            return error_response(ProxyError(DEFECT), self.request.body.endpoint.path)

    async def _answer(self) -> ASGIApp:
        """Has the condenser decide, forwards the request, and returns the response that relays the reply."""
        services, request = self.services, self.request
        services.asking.lane.note_arrival()
        exchange = await services.condenser.exchange(request)
        self.line.decided = exchange
        if request.controls.dry_run:
            return _dry_run(exchange)
        services.telemetry.record_decision(exchange.decision, exchange.timing.ours)
        await self._set_up_keep_alive(exchange)
        self._ask_for_window(exchange.decision)
        # Not earlier: background calls yield to the foreground, and `decide` may wait for one that prepares its record.
        self.under_way.enter_context(services.asking.lane.foreground)
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
        path = self.request.body.endpoint.path.encode()
        request = UpstreamRequest("POST", path, self.request.query, headers, sent)
        reply = await self.services.upstream.send(request)
        try:
            shares = not self.request.controls.no_store
            await self.services.callers.note(self.request.trust, reply.status, shares=shares)
        except BaseException:
            await reply.close()
            raise
        if reply.status in REFUSED:
            # Noted here, because not every refusal reaches the client: a request after a search may be repeated.
            self.services.asking.lane.note_refusal(first(reply.headers, b"retry-after"))
        return reply

    def _extra_tokens(self, decision: Decision) -> int:
        """Prompt tokens that the reported usage has in addition to those that were forwarded."""
        return decision.tokens_saved if self.services.settings.report_usage == "original" else 0

    def _relay(self, reply: UpstreamReply, exchange: Exchange) -> Relay:
        """The response; what a later request depends on is stored only if the upstream accepted this one."""
        taken, decision, endpoint = is_success(reply.status), exchange.decision, self.request.body.endpoint
        own_headers = encode_headers(exchange.headers(accepted=taken))
        if not taken:
            return Relay(endpoint, self.incoming, reply, own_headers)
        capture = endpoint.capture(reply.headers) if decision.head else None
        watched = WatchedReply(endpoint, reply.headers, capture)
        settle = partial(exchange.settle, watched)
        extra_tokens, probed = self._extra_tokens(decision), decision.probed
        editor = None
        if extra_tokens or probed:
            editor = editor_for(endpoint, reply.headers, extra_tokens, removes_usage=probed)
        start_task = partial(self.services.background.own, to_its_end=True)
        must_settle = bool(decision.head)
        follow = exchange.follow_up
        return Relay(
            endpoint, self.incoming, reply, own_headers, settle, watched, follow, editor, start_task, must_settle
        )


def _keep_alive(services: Services, request: ClientRequest) -> KeepAlive:
    """The keep-alive of a request, which sends beats only for a stream and if the settings want them."""
    settings = services.settings
    is_stream = request.body.values.get("stream") is True
    is_wanted = is_stream and settings.keepalive != "off" and not request.controls.dry_run
    endpoint = request.body.endpoint
    return KeepAlive(
        endpoint,
        settings.keepalive_interval if is_wanted else None,
        lambda: COMMENT if settings.keepalive == "comment" else endpoint.beat(request.model, services.clock()),
    )


def _dry_run(exchange: Exchange) -> Response:
    response = Response(account.dry_run(exchange.decision), media_type="application/json")
    response.raw_headers.extend(encode_headers(exchange.headers(accepted=False)))
    return response


# -- reading -------------------------------------------------------------------------------------------------------


async def read_request(endpoint: Endpoint, request: Request, services: Services, incoming: Incoming) -> ClientRequest:
    """Reads the request; raises `BadRequest`, `BodyTooLarge`, `ClientGone` and `Unread`."""
    headers, limit = request.scope["headers"], services.settings.limits.body
    decoder = decoder_for(encoding) if (encoding := encoding_of(headers)) else None
    if encoding and decoder is None:
        _check_may_go_unread(controls.read(headers, None, None, services.permits), encoding)
        raise Unread(Reason.ENCODED_BODY)
    _check_length(headers, limit)
    owner: Owner = request.scope[OWNER]
    place: Place = request.scope[PLACE]
    data = await _receive_body(incoming, limit, place)
    try:
        plain = data
        if decoder is not None:
            plain = await decode_body(data, decoder, limit)
            place.hold(len(plain))
        body = await wire.read_in_turns(plain, endpoint, services.message_cache, services.bounds, owner=owner.tenant)
        controls.check_model(body.values.get("model"))
    except (BadRequest, BodyTooLarge):
        from_headers = controls.read(headers, None, None, services.permits)
        if from_headers.needs_reading or not _is_off(from_headers, services):
            raise
        stripped = await asyncio.to_thread(wire.without_extension, plain)
        if stripped == plain:
            raise Unread(Reason.UNREADABLE_BODY, data) from None
        raise Unread(Reason.UNREADABLE_BODY, stripped, is_unpacked=bool(encoding)) from None
    client_request = _client_request(request, services, body, owner)
    return _with_encoded_body(client_request, data) if encoding else client_request


def _check_length(headers: Headers, limit: int) -> None:
    """Raises `BodyTooLarge` for a body that its headers say to be larger than `limit` bytes."""
    length = first(headers, b"content-length") or ""
    if length.isdecimal() and int(length[:_MAX_DIGITS]) > limit:
        raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.", param="Content-Length")


async def _receive_body(incoming: Incoming, limit: int, place: Place) -> bytes:
    """Receives the request's body; raises `BodyTooLarge` as soon as it gets larger than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    while (part := await incoming.read_part()) is not None:
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.")
        if part:
            place.hold(len(part))
            parts.append(part)
    return b"".join(parts)


def _client_request(request: Request, services: Services, body: wire.Body, owner: Owner) -> ClientRequest:
    headers = request.scope["headers"]
    model, suffix = controls.split_model(body.values.get("model"))
    return ClientRequest(
        tenant=owner.tenant,
        headers=to_upstream(headers, services.own_key, body.endpoint.key_header),
        body=body,
        model=model or "",
        has_suffix=suffix is not None,
        query=request.scope["query_string"],
        controls=controls.read(headers, body.values.get(EXTENSION), suffix, services.permits),
        received_at=services.clock(),
        trust=services.callers.trust_in(owner.credential),
    )


def _with_encoded_body(request: ClientRequest, data: bytes) -> ClientRequest:
    """A request whose body came encoded; the headers that say so are kept apart, for other bodies are not encoded."""
    encoding_headers = [pair for pair in request.headers if pair[0] == ENCODING]
    headers = [pair for pair in request.headers if pair[0] != ENCODING]
    return request._replace(headers=headers, encoded_body=data, encoding_headers=encoding_headers)


def _is_off(from_headers: Controls, services: Services) -> bool:
    """Whether the headers of a request, or else the settings, choose the strategy `off`."""
    return from_headers.strategy.is_off if from_headers.strategy is not None else services.settings.strategy == "off"


def _check_may_go_unread(from_headers: Controls, encoding: str) -> None:
    """Raises `BadRequest` if the headers ask for something that takes a body that can be read."""
    if from_headers.needs_reading:
        message = f"A dry run, and append mode, need a body that can be read, and not one in {encoding}."
        raise BadRequest(message, param="Content-Encoding")
