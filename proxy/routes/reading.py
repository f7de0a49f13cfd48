"""What a request for a completion says: from what came in to what the driver takes.

A body that cannot be read is refused. Two are not: one in an encoding that we do not unpack, and one that is to be left
as it is anyway (`off`). They are `Unread`, and go on as they came.
"""

from __future__ import annotations

from starlette.requests import Request

from proxy.errors import BadRequest, BodyTooLarge
from proxy.http.content_encoding import ENCODING, decoder, encoding_of, unpacked
from proxy.http.headers import to_upstream
from proxy.reasons import Reason
from proxy.reply.relay import Incoming
from proxy.request import controls, wire
from proxy.request.controls import Controls
from proxy.request.intake import ChatRequest
from proxy.services import Services


class Unread(Exception):
    """A request that goes on unread, and the `body` that was taken in of it; None where nothing was."""

    def __init__(self, reason: Reason, body: bytes | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.body = body


async def read(request: Request, services: Services, incoming: Incoming) -> ChatRequest:
    """The request as the driver takes it; raises `BadRequest`, `BodyTooLarge`, `ClientGone` and `Unread`."""
    headers, limit = request.scope["headers"], services.settings.limits.body
    undoing = decoder(encoding) if (encoding := encoding_of(headers)) else None
    if encoding and undoing is None:
        _check_may_go_unread(controls.read(headers, None, None), encoding)
        raise Unread(Reason.ENCODED_BODY)
    data = await _body_of(incoming, limit)
    try:
        body = wire.read(data if undoing is None else await unpacked(data, undoing, limit), services.seen)
        controls.check_model(body.get("model"))
    except (BadRequest, BodyTooLarge):
        said = controls.read(headers, None, None)
        if said.needs_reading or not _is_off(said, services):
            raise
        raise Unread(Reason.UNREADABLE_BODY, data) from None
    asked = _asked(request, services, body)
    return _packed(asked, data) if encoding else asked


async def _body_of(incoming: Incoming, limit: int) -> bytes:
    """The request's body; raises `BodyTooLarge` as soon as it is."""
    parts: list[bytes] = []
    size = 0
    while (part := await incoming.part()) is not None:
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.")
        parts.append(part)
    return b"".join(parts)


def _asked(request: Request, services: Services, body: wire.Body) -> ChatRequest:
    headers, client = request.scope["headers"], request.scope.get("client")
    model, suffix = controls.split_model(body.get("model"))
    return ChatRequest(
        tenant=services.tenants.tenant(headers, client[0] if client else None),
        headers=to_upstream(headers, services.own_key),
        body=body,
        model=model or "",
        renamed=suffix is not None,
        query=request.scope["query_string"],
        controls=controls.read(headers, body.get(wire.EXTENSION), suffix),
        asked_at=services.clock(),
    )


def _packed(asked: ChatRequest, data: bytes) -> ChatRequest:
    """A request that came packed; what is asked on its behalf does not."""
    how = [pair for pair in asked.headers if pair[0] == ENCODING]
    plain = [pair for pair in asked.headers if pair[0] != ENCODING]
    return asked._replace(headers=plain, packed=data, packed_as=how)


def _is_off(said: Controls, services: Services) -> bool:
    """Whether a request is `off` by what its headers and the settings say, if not by its body."""
    return said.strategy.is_off if said.strategy is not None else services.settings.strategy == "off"


def _check_may_go_unread(said: Controls, encoding: str) -> None:
    """Raises `BadRequest` where a request wants what only a body that is read can give."""
    if said.needs_reading:
        message = f"A dry run, and append mode, need a body that can be read, and not one in {encoding}."
        raise BadRequest(message, param="Content-Encoding")
