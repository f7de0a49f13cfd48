"""A request that arrives: it gets a place. One to a condensed endpoint is read, all others are passed on unchanged.

A request waits for its place (`proxy/http/admission.py`) before anything is read of it, and has it until its reply has
ended. A body that cannot be read is refused, with two exceptions: a body in an encoding that the proxy does not decode,
and a body that is not to be changed anyway (strategy `off`). These are forwarded as they came: `Unread`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import controls
from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.table import endpoint_at
from proxy.errors import BadRequest, BodyTooLarge, ProxyError, UpgradeRefused
from proxy.http.admission import Place
from proxy.http.headers import (
    ENCODING,
    Headers,
    decode_body,
    decoder_for,
    encode_headers,
    encoding_of,
    first,
    to_upstream,
)
from proxy.log import LINE
from proxy.reasons import Action, Reason
from proxy.request import wire
from proxy.request.callers import Owner
from proxy.request.scanning import EXTENSION
from proxy.request.wire import ClientRequest, GoesOn
from proxy.serving.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming, Relay
from proxy.upstream import UpstreamReply, UpstreamRequest

if TYPE_CHECKING:
    from proxy.services import Services  # the app hands them over, so nothing here builds them

_MAX_DIGITS = 20  # of a content length that are read


_USAGE_AS_FORWARDED = "report_usage is forwarded for this client, which compacts its history by the usage that it sees"


class Arrival(NamedTuple):
    """A request that has a place."""

    scope: Scope
    receive: Receive
    send: Send
    services: Services
    owner: Owner
    place: Place
    incoming: Incoming

    async def answer(self, app: ASGIApp) -> None:
        await app(self.scope, self.receive, self.send)


class Unread(Exception):
    """The request is to be forwarded without being read; `body` is its body if that was received already.

    If the body `is_unpacked`, its encoding was undone.
    """

    def __init__(self, reason: Reason, body: bytes | None = None, *, is_unpacked: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.body = body
        self.is_unpacked = is_unpacked


class Placed(ABC):
    """An ASGI app whose requests have a place until their reply has ended."""

    __slots__ = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; raises `ProxyError` if it is refused before it was read."""
        services: Services = scope["app"].state.services
        client = scope.get("client")
        owner = services.tenants.owner(scope["headers"], client[0] if client else None)
        place = await services.admission.enter(owner.tenant)
        try:
            await self.serve(Arrival(scope, receive, send, services, owner, place, Incoming(receive)))
        except ClientGone:
            await Response(status_code=CLIENT_CLOSED_REQUEST)(scope, receive, send)
        finally:
            place.leave()

    @abstractmethod
    def serve(self, arrival: Arrival) -> Awaitable[None]:
        """Reads the request and answers it."""


def shows_original_usage(services: Services, endpoint: Endpoint, headers: Headers) -> bool:
    """Whether a client is shown what its own list would have cost; never one that compacts it by that."""
    return services.settings.report_usage == "original" and not endpoint.compacts_by_usage(headers)


async def read_request(endpoint: Endpoint, arrival: Arrival) -> ClientRequest:
    """Reads a request; raises `BadRequest`, `BodyTooLarge`, `ClientGone` and `Unread`."""
    scope, services, owner, place = arrival.scope, arrival.services, arrival.owner, arrival.place
    headers, limit = scope["headers"], services.settings.limits.body
    named = dict(headers)
    encoding = encoding_of(headers) if ENCODING in named else ""
    decoder = decoder_for(encoding) if encoding else None
    if encoding and decoder is None:
        if controls.read(headers, None, None, services.permit).needs_reading:
            message = f"A dry run, and append mode, need a body that can be read, and not one in {encoding}."
            raise BadRequest(message, param="Content-Encoding")
        raise Unread(Reason.ENCODED_BODY)
    length = named.get(b"content-length", b"")
    if length.isdigit() and int(length[:_MAX_DIGITS]) > limit:
        raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.", param="Content-Length")
    data = await _receive_body(arrival.incoming, limit, place)
    try:
        plain = data
        if decoder is not None:
            plain = await decode_body(data, decoder, limit)
            place.hold(len(plain))
        body = await wire.read_in_turns(plain, endpoint, services.message_cache, services.bounds, owner=owner.tenant)
        controls.check_model(body.values.get("model"))
    except (BadRequest, BodyTooLarge):
        asked = controls.read(headers, None, None, services.permit)
        is_off = asked.strategy.is_off if asked.strategy is not None else services.settings.strategy == "off"
        if asked.needs_reading or not is_off:
            raise
        stripped = await asyncio.to_thread(wire.without_extension, plain)
        if stripped == plain:
            raise Unread(Reason.UNREADABLE_BODY, data) from None
        raise Unread(Reason.UNREADABLE_BODY, stripped, is_unpacked=bool(encoding)) from None
    values, goes_on = body.values, None
    if services.kept_replies is not None and endpoint.previous_reply:
        body, goes_on = await services.kept_replies.supplied(owner.tenant, body)
        values = body.values if goes_on is None else {**body.values, endpoint.previous_reply: None}
    state = endpoint.server_state(values, () if body.is_text else (element.role for element in body.elements))
    request = _client_request(arrival, body, goes_on, data if encoding else b"")
    if state is not None:
        raise _held_by_server(request, state, data if encoding else body.data, is_unpacked=bool(encoding))
    return request


def _held_by_server(request: ClientRequest, state: Reason, data: bytes, *, is_unpacked: bool) -> Exception:
    """What is raised for a request that must pass as it came, without what it asks of the proxy."""
    if request.controls.needs_reading:
        return BadRequest("A dry run, and append mode, need the whole history in the request.", param="dry-run")
    sent = request.body.spliced(model=request.model if request.has_suffix else None)
    return Unread(state, data) if sent == request.body.data else Unread(state, sent, is_unpacked=is_unpacked)


async def _receive_body(incoming: Incoming, limit: int, place: Place) -> bytes:
    """Receives the request's body; raises `BodyTooLarge` as soon as it gets larger than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    while not incoming.body_was_read:
        part = await incoming.read_part()
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.")
        if part:
            place.hold(len(part))
            parts.append(part)
    return b"".join(parts)


def _client_request(arrival: Arrival, body: wire.Body, goes_on: GoesOn | None, encoded_body: bytes) -> ClientRequest:
    scope, services, owner, endpoint = arrival.scope, arrival.services, arrival.owner, body.endpoint
    model, suffix = controls.split_model(body.values.get("model"))
    asked = controls.read(scope["headers"], body.values.get(EXTENSION), suffix, services.permit)
    if services.settings.report_usage == "original" and endpoint.compacts_by_usage(scope["headers"]):
        asked = replace(asked, warnings=(*asked.warnings, _USAGE_AS_FORWARDED))
    headers, encoding_headers = to_upstream(scope["headers"], services.own_key, endpoint.key_header), []
    if encoded_body:
        # The headers of the encoding are kept apart, for other bodies are not encoded.
        encoding_headers = [pair for pair in headers if pair[0] == ENCODING]
        headers = [pair for pair in headers if pair[0] != ENCODING]
    # What came to a provider's prefix is forwarded to the same path.
    is_prefixed = bool(scope.get("path_params", {}).get("prefix"))
    return ClientRequest(
        tenant=owner.tenant,
        headers=headers,
        body=body,
        model=model or "",
        has_suffix=suffix is not None,
        path=scope["raw_path"].removeprefix(scope.get("root_path", "").encode()) if is_prefixed else b"",
        query=scope["query_string"],
        controls=asked,
        received_at=services.clock(),
        encoded_body=encoded_body,
        encoding_headers=encoding_headers,
        trust=services.callers.trust_in(owner.credential),
        goes_on=goes_on,
    )


# -- passing on ------------------------------------------------------------------------------------------------

GENERATING = frozenset(
    (
        *("completions", "responses", "conversations", "messages", "threads", "embeddings", "moderations"),
        *("images", "audio", "videos", "realtime"),
    )
)
"""The first path segments under `/v1/` of endpoints that ask a model, or hold what one is asked."""

Pairs = list[tuple[str, str]]


class PassThrough(Placed):
    """Forwards requests under `/v1/` without reading them and relays the replies, as an ASGI app."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if first(scope["headers"], b"upgrade"):
            raise UpgradeRefused
        await super().__call__(scope, receive, send)

    async def serve(self, arrival: Arrival) -> None:
        scope = arrival.scope
        segment = scope["path"].removeprefix("/v1/").partition("/")[0]
        is_bypassed = scope["method"] == "POST" and segment in GENERATING
        own_headers = _note_bypass(arrival, Reason.NOT_CONDENSED_ENDPOINT) if is_bypassed else []
        await arrival.answer(await _forward(arrival, own_headers))


async def pass_unread(arrival: Arrival, unread: Unread) -> ASGIApp:
    """Forwards a request that would be condensed but is not read; returns what relays the reply."""
    own_headers = _note_bypass(arrival, unread.reason)
    return await _forward(arrival, own_headers, unread.body, is_unpacked=unread.is_unpacked)


def _note_bypass(arrival: Arrival, reason: Reason) -> Pairs:
    """Counts a request that asks a model and is not condensed; returns the headers that say so."""
    arrival.services.telemetry.count("requests_total", Action.BYPASSED)
    arrival.scope[LINE].outcome = Action.BYPASSED, reason
    return [("X-Condenser-Action", Action.BYPASSED), ("X-Condenser-Reason", reason)]


async def _forward(
    arrival: Arrival, own_headers: Pairs, body: bytes | None = None, *, is_unpacked: bool = False
) -> ASGIApp:
    """What relays the reply. A body that was not read is streamed, with its content length if the client sent one."""
    scope, incoming, received, started = arrival.scope, arrival.incoming, arrival.scope["headers"], perf_counter()
    endpoint = endpoint_at(scope["path"])
    headers = to_upstream(received, arrival.services.own_key, endpoint.key_header)
    if is_unpacked:
        headers = [pair for pair in headers if pair[0] != ENCODING]
    length = first(received, b"content-length")
    has_body = length not in (None, "0") or first(received, b"transfer-encoding") is not None
    if has_body and length is not None and body is None:
        headers.append((b"content-length", length.encode()))
    content = body if body is not None else incoming.body() if has_body else b""

    async def send() -> UpstreamReply:
        if isinstance(content, bytes):
            # A disconnect is noticed only after the client's body has been read to its end.
            async for _ in incoming.body():
                pass
        target = scope["method"], scope["raw_path"], scope["query_string"]
        return await arrival.services.upstream.send(UpstreamRequest(*target, headers, content))

    try:
        reply = await incoming.unless_gone(send())
    except ProxyError as error:
        error.headers = own_headers
        raise
    finally:
        scope[LINE].upstream_ms = (perf_counter() - started) * 1000
    return Relay(endpoint, incoming, reply, encode_headers(own_headers))
