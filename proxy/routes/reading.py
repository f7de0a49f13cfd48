"""Reads a chat completion request into the form that the condenser takes.

A body that cannot be read is refused, with two exceptions: a body in an encoding that the proxy does not decode, and a
body that is not to be changed anyway (strategy `off`). These raise `Unread` and are forwarded as they came.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from proxy.errors import BadRequest, BodyTooLarge
from proxy.http.admission import PLACE, Place
from proxy.http.content_encoding import ENCODING, decode_body, decoder_for, encoding_of
from proxy.http.headers import Headers, first, to_upstream
from proxy.reasons import Reason
from proxy.reply.relay import Incoming
from proxy.request import controls, wire
from proxy.request.chat import ChatRequest
from proxy.request.controls import Controls
from proxy.request.tenants import OWNER, Owner
from proxy.services import Services

_LONGEST_LENGTH = 20  # digits of a content length that are read


class Unread(Exception):
    """The request is to be forwarded without being read; `body` is its body if that was received already.

    If the body `is_unpacked`, its encoding was undone.
    """

    def __init__(self, reason: Reason, body: bytes | None = None, *, is_unpacked: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.body = body
        self.is_unpacked = is_unpacked


async def read(request: Request, services: Services, incoming: Incoming) -> ChatRequest:
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
        body = await wire.read_in_turns(plain, services.message_cache, services.bounds, owner=owner.tenant)
        controls.check_model(body.get("model"))
    except (BadRequest, BodyTooLarge):
        from_headers = controls.read(headers, None, None, services.permits)
        if from_headers.needs_reading or not _is_off(from_headers, services):
            raise
        stripped = await asyncio.to_thread(wire.without_extension, plain)
        if stripped == plain:
            raise Unread(Reason.UNREADABLE_BODY, data) from None
        raise Unread(Reason.UNREADABLE_BODY, stripped, is_unpacked=bool(encoding)) from None
    chat_request = _chat_request(request, services, body, owner)
    return _with_encoded_body(chat_request, data) if encoding else chat_request


def _check_length(headers: Headers, limit: int) -> None:
    """Raises `BodyTooLarge` for a body that its headers say to be larger than `limit` bytes."""
    length = first(headers, b"content-length") or ""
    if length.isdecimal() and int(length[:_LONGEST_LENGTH]) > limit:
        raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.", param="Content-Length")


async def _receive_body(incoming: Incoming, limit: int, place: Place) -> bytes:
    """Receives the request's body; raises `BodyTooLarge` as soon as it gets larger than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    while (part := await incoming.read_part()) is not None:
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.")
        place.hold(len(part))
        parts.append(part)
    return b"".join(parts)


def _chat_request(request: Request, services: Services, body: wire.Body, owner: Owner) -> ChatRequest:
    headers = request.scope["headers"]
    model, suffix = controls.split_model(body.get("model"))
    return ChatRequest(
        tenant=owner.tenant,
        headers=to_upstream(headers, services.own_key),
        body=body,
        model=model or "",
        has_suffix=suffix is not None,
        query=request.scope["query_string"],
        controls=controls.read(headers, body.get(wire.EXTENSION), suffix, services.permits),
        received_at=services.clock(),
        trust=services.callers.trust_in(owner.credential),
    )


def _with_encoded_body(request: ChatRequest, data: bytes) -> ChatRequest:
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
