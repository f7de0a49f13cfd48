"""What a request for a completion says: from what came in to what the driver takes.

A body that cannot be read is refused. Two are not: one in an encoding that we do not unpack, and one that is to be left
as it is anyway (`off`). They are `Unread`, and go on as they came.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from proxy import controls, wire
from proxy.controls import Controls
from proxy.errors import BadRequest, BodyTooLarge
from proxy.headers import to_upstream
from proxy.intake import ChatRequest
from proxy.packed import ENCODING, encoding_of, is_known, unpacked
from proxy.reasons import Reason
from proxy.relay import Incoming
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
    encoding = encoding_of(headers)
    if not is_known(encoding):
        _check_needs_no_reading(controls.read(headers, None, None), encoding)
        raise Unread(Reason.ENCODED_BODY)
    data = await _body_of(incoming, limit)
    try:
        body = wire.read(await unpacked(data, encoding, limit) if encoding else data, services.seen)
        controls.check_model(body.get("model"))
    except (BadRequest, BodyTooLarge):
        if _may_go_unread(controls.read(headers, None, None), services):
            raise Unread(Reason.UNREADABLE_BODY, data) from None
        raise
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


def _may_go_unread(asked: Controls, services: Services) -> bool:
    """Whether a request is `off`, by its headers and the settings, and wants nothing that only reading it can give."""
    is_off = asked.strategy.is_off if asked.strategy is not None else services.settings.strategy == "off"
    return is_off and not (asked.dry_run or asked.append)


def _check_needs_no_reading(asked: Controls, encoding: str) -> None:
    """Raises `BadRequest` where a request wants what only a body that is read can give."""
    wanted: Sequence[tuple[bool, str]] = ((asked.dry_run, "Dry-Run"), (asked.append, "History: append"))
    for is_wanted, what in wanted:
        if is_wanted:
            message = f"X-Condenser-{what} needs a body that can be read, and not one in {encoding}."
            raise BadRequest(message, param="Content-Encoding")
