"""A request that arrives: it gets a place, and one of an endpoint is read.

A request waits for its place (`proxy/http/admission.py`) before anything is read of it, and has it until its reply has
ended. A body that cannot be read is refused, with two exceptions: a body in an encoding that the proxy does not decode,
and a body that is not to be changed anyway (strategy `off`). These are forwarded as they came: `Unread`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import controls
from proxy.controls import Controls
from proxy.endpoints.endpoint import Endpoint
from proxy.errors import BadRequest, BodyTooLarge
from proxy.http.admission import Place
from proxy.http.headers import ENCODING, Headers, decode_body, decoder_for, encoding_of, to_upstream
from proxy.reasons import Reason
from proxy.request import wire
from proxy.request.callers import Owner
from proxy.request.scanning import EXTENSION
from proxy.request.wire import ClientRequest, GoesOn
from proxy.serving.relay import Incoming, Unread

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
        """Sends the response that an app makes."""
        await app(self.scope, self.receive, self.send)


class Placed(ABC):
    """An ASGI app whose requests have a place until their reply has ended."""

    __slots__ = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; raises `ProxyError` where it is refused before it was read."""
        services: Services = scope["app"].state.services
        client = scope.get("client")
        owner = services.tenants.owner(scope["headers"], client[0] if client else None)
        place = await services.admission.enter(owner.tenant)
        try:
            await self.serve(Arrival(scope, receive, send, services, owner, place, Incoming(receive)))
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
        _check_may_go_unread(controls.read(headers, None, None, services.permit), encoding)
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
        from_headers = controls.read(headers, None, None, services.permit)
        if from_headers.needs_reading or not _is_off(from_headers, services):
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
    request = _client_request(scope, services, body, owner, goes_on)
    if state is not None:
        raise _held_by_server(request, state, data if encoding else body.data, is_unpacked=bool(encoding))
    return _with_encoded_body(request, data) if encoding else request


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


def _client_request(
    scope: Scope, services: Services, body: wire.Body, owner: Owner, goes_on: GoesOn | None
) -> ClientRequest:
    headers, endpoint = scope["headers"], body.endpoint
    model, suffix = controls.split_model(body.values.get("model"))
    asked = controls.read(headers, body.values.get(EXTENSION), suffix, services.permit)
    if services.settings.report_usage == "original" and endpoint.compacts_by_usage(headers):
        asked = replace(asked, warnings=(*asked.warnings, _USAGE_AS_FORWARDED))
    return ClientRequest(
        tenant=owner.tenant,
        headers=to_upstream(headers, services.own_key, endpoint.key_header),
        body=body,
        model=model or "",
        has_suffix=suffix is not None,
        path=_prefixed_path(scope),
        query=scope["query_string"],
        controls=asked,
        received_at=services.clock(),
        trust=services.callers.trust_in(owner.credential),
        goes_on=goes_on,
    )


def _prefixed_path(scope: Scope) -> bytes:
    """The path of a request that came to a provider's prefix, to be forwarded as it is; empty for `/v1`."""
    if not scope.get("path_params", {}).get("prefix"):
        return b""
    path: bytes = scope["raw_path"]
    return path.removeprefix(scope.get("root_path", "").encode())


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
