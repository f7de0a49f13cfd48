"""The client's side of a request: it waits for a place, its body is read, and its client may leave at any time.

A request waits for its place (`proxy/http/admission.py`) when its body has come, and keeps it until its reply has
ended. When the client disconnects, the work on its request is cancelled, even while the upstream is silent: from a
moment after the body has been read, a task waits for the disconnect.

A body that cannot be read is refused, with two exceptions: a body in an encoding that the proxy does not decode, and
one that would not be changed anyway (strategy `off`). These are forwarded as they came: `PassOn`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import controls
from proxy.bodies import wire
from proxy.bodies.wire import ClientRequest
from proxy.callers.keys import check_permitted, check_unread
from proxy.callers.tenants import Owner
from proxy.errors import CLIENT_CLOSED_REQUEST, BadRequest, BodyTooLarge
from proxy.http.admission import Place
from proxy.http.encodings import IN_THREAD, decode_body, decoder_for, most_unpacked
from proxy.http.headers import BEARER, ENCODING, SIGNATURE, SIGNED, encoding_of, for_body
from proxy.http.paths import UNLISTED
from proxy.log import LINE, RequestLine
from proxy.protocols.endpoint import Endpoint
from proxy.reasons import Reason
from proxy.servers.upstream.choice import Destination, destination_of

if TYPE_CHECKING:
    from proxy.services import Services  # the app hands them over, so nothing here builds them

_MAX_DIGITS = 20  # of a content length that are read
READ_WHOLE = 1024 * 1024
"""A body that is only passed on is read whole up to this length, so that it can be sent again; else in parts."""
WATCH_AFTER = 0.05
"""Seconds until a task starts to watch for the client's disconnect; a reply that comes sooner saves that task."""


class ClientGone(Exception):
    """The client closed its connection."""


class ClientStream:
    """The client's side of a request: its body, and whether the client is still connected."""

    def __init__(self, receive: Receive) -> None:
        self.body_was_read = False
        self._receive = receive
        self._body_end = asyncio.Event()
        self._watch: _Watch | None = None
        self._watching: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._has_left = False

    async def body(self) -> AsyncIterator[bytes]:
        """The parts of the body as they come in; raises `ClientGone`."""
        while not self.body_was_read:
            if part := await self.read_part():
                yield part

    async def read_part(self) -> bytes:
        """The next part of a body that was not read to its end; it may be empty. Raises `ClientGone`."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body", False):
            self.body_was_read = True
            self._body_end.set()
        part: bytes = message.get("body", b"")
        return part

    def unless_gone(self) -> _Watch:
        """A context that is cancelled if the client disconnects, and then raises `ClientGone`.

        As with `asyncio.timeout`, the work runs in the caller's task. A task that watches the client is started only if
        the work takes longer than a moment. It keeps watching after work that succeeded, until `close` ends it.
        """
        task = asyncio.current_task()
        assert task is not None
        watch = self._watch = _Watch(self, task)
        if self._has_left:
            asyncio.get_running_loop().call_soon(watch.cancel_task)
        elif self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(WATCH_AFTER, self._start_watching)
        return watch

    def end_watch(self, watch: _Watch) -> None:
        if self._watch is watch:
            self._watch = None

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _start_watching(self) -> None:
        self._watching = asyncio.ensure_future(self._watch_client())

    async def _watch_client(self) -> None:
        """Waits until the client has disconnected, which is not noticed before the body has been read."""
        await self._body_end.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        if self._watch is not None:
            self._watch.cancel_task()


class _Watch:
    """Cancels a task while its context is open."""

    def __init__(self, client: ClientStream, task: asyncio.Task[Any]) -> None:
        self._client = client
        self._task = task
        self._cancelling_before = task.cancelling()
        self._has_cancelled = self._is_over = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        task, self._is_over = self._task, True
        self._client.end_watch(self)
        is_only_canceller = self._has_cancelled and task.cancelling() == self._cancelling_before + 1
        if self._has_cancelled:
            task.uncancel()  # the caller deals with it
        if error is None:
            return
        self._client.close()
        if isinstance(error, asyncio.CancelledError) and is_only_canceller:
            raise ClientGone from None

    def cancel_task(self) -> None:
        if not self._is_over:
            self._has_cancelled = True
            self._task.cancel()


class PassOn(Exception):
    """The request is to be forwarded without being read.

    `body` is set if the body was received already; if it `is_changed`, no header describes it. `upstream` is set if
    it is known where the request goes.
    """

    def __init__(
        self,
        reason: Reason,
        body: bytes | None = None,
        *,
        is_changed: bool = False,
        upstream: Destination | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.body = body
        self.is_changed = is_changed
        self.upstream = upstream


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    """A request whose caller is known, and the place that it takes once its body is complete, until its reply ends."""

    scope: Scope
    receive: Receive
    send: Send
    services: Services
    owner: Owner
    place: Place
    client: ClientStream
    line: RequestLine
    until_answered: AsyncExitStack = field(default_factory=AsyncExitStack)  # what is held until the reply has been sent
    at_end: list[Callable[[], None]] = field(default_factory=list)  # what is done when it has ended, the last one first
    is_replying: bool = False
    has_spent: bool = False  # whether its tokens are counted

    async def answer(self, app: ASGIApp) -> None:
        """Sends the reply."""
        self.is_replying = True
        await app(self.scope, self.receive, self.send)

    async def leave_unanswered(self) -> None:
        """Ends a request whose client has left; nobody reads what is sent now."""
        if not self.is_replying:
            await self.answer(Response(status_code=CLIENT_CLOSED_REQUEST))

    async def end(self) -> None:
        self.client.close()
        await self.until_answered.aclose()
        for each in reversed(self.at_end):
            each()
        self.place.leave()


def admit(scope: Scope, receive: Receive, send: Send) -> AdmittedRequest:
    """The request of an authenticated caller; raises `ProxyError`."""
    services: Services = scope["app"].state.services
    client, line = scope.get("client"), scope[LINE]
    peer, prefix = client[0] if client else None, scope.get(UNLISTED, "")
    owner = services.tenants.owner(scope["headers"], peer, prefix, scope["query_string"])
    line.tenant = services.tenants.shown(owner.tenant)
    place = services.admission.place(owner.tenant)
    return AdmittedRequest(scope, receive, send, services, owner, place, ClientStream(receive), line)


async def spend(came: AdmittedRequest, asked: ClientRequest) -> None:
    """Takes an estimate of a request from its tenant's tokens, if these are bounded; raises `TokensSpent`.

    What was really spent is counted when the request ends.
    """
    if came.services.token_budget is not None and not asked.controls.dry_run:
        # Only the upstream can check what a login says: before that, it spends nothing of the tenant that it names.
        await spend_bytes(came, len(asked.body.data), asked.tenant if asked.trust.accepted else came.owner.tenant)


async def spend_bytes(came: AdmittedRequest, size: int, tenant: str) -> None:
    """The same for a request of which no more is known than the size of its body; once for each request."""
    budget, line = came.services.token_budget, came.line
    if budget is None or came.has_spent:
        return
    spending, came.has_spent = await budget.admit(tenant, size), True

    def end() -> None:
        turn, reported, is_refused = line.turn, 0, bool(line.error) or (line.status or 0) >= HTTPStatus.BAD_REQUEST
        if turn is not None:
            rounds, record = turn.sent.rounds, turn.record
            reported = turn.reply.spent or (rounds.spent_tokens if rounds else 0)
            is_refused = record is not None and record.status >= HTTPStatus.BAD_REQUEST
        spending.end(reported, is_refused=is_refused)

    came.at_end.append(end)


async def read_request(
    endpoint: Endpoint, admitted: AdmittedRequest, read: Callable[..., Awaitable[wire.Body]] = wire.read_through_cache
) -> ClientRequest:
    """Reads a request, its body by `read`; raises `BadRequest`, `BodyTooLarge`, `ClientGone` and `PassOn`."""
    scope, services, owner, place = admitted.scope, admitted.services, admitted.owner, admitted.place
    headers, limit = scope["headers"], services.settings.limits.body
    named = dict(headers)
    encoding = encoding_of(headers) if ENCODING in named else ""
    decoder = decoder_for(encoding) if encoding else None
    if encoding and decoder is None:
        if controls.read(headers, None, None, services.permit).needs_reading:
            message = f"A dry run, and append mode, need a body that can be read, and not one in {encoding}."
            raise BadRequest(message, param="Content-Encoding")
        check_unread(owner.key)
        raise PassOn(Reason.ENCODED_BODY)
    length = named.get(b"content-length", b"")
    if length.isdigit() and int(length[:_MAX_DIGITS]) > limit:
        raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.", param="Content-Length")
    data = await receive_body(admitted.client, limit, place)
    try:
        plain = data
        if decoder is not None:
            unpacked = most_unpacked(len(data), limit) if len(data) >= IN_THREAD else 0
            async with services.admission.unpacking:  # few at once: most unpack to far less than is held for them
                place.hold(unpacked)  # before others are served that need memory too
                plain = await decode_body(data, decoder, limit)
                place.hold(len(plain) - unpacked)
        await place.take()  # not earlier: what it needs depends on the body's unpacked size
        body = await read(plain, endpoint, services.message_cache, services.bounds, owner=owner.tenant)
        controls.check_model(body.values.get("model"))
    except (BadRequest, BodyTooLarge):
        asked = controls.read(headers, None, None, services.permit)
        is_off = asked.strategy.is_off if asked.strategy is not None else services.settings.strategy == "off"
        if asked.needs_reading or not is_off:
            raise
        check_unread(owner.key)
        stripped = await asyncio.to_thread(wire.without_extension, plain)
        if stripped == plain:
            raise PassOn(Reason.UNREADABLE_BODY, data) from None
        raise PassOn(Reason.UNREADABLE_BODY, stripped, is_changed=True) from None
    request = _client_request(admitted, body, data if encoding else b"")
    admitted.line.model, admitted.line.upstream = request.model, request.upstream.name
    return await _with_items_opened(request, admitted) if body.endpoint.compact_path else request


async def _with_items_opened(request: ClientRequest, admitted: AdmittedRequest) -> ClientRequest:
    """The request with the messages that its compaction items of the proxy's own stand for; raises `ProxyError`."""
    services, endpoint, owner = admitted.services, request.body.endpoint, admitted.owner.tenant
    most = most_unpacked(len(request.encoded_body or request.body.data), services.settings.limits.body)
    opened = await services.compaction_items.opened(request.body, request.tenant, admitted.place, most)
    if opened is None:
        return request
    body = await wire.read_through_cache(opened, endpoint, services.message_cache, services.bounds, owner=owner)
    headers = for_body(request.headers, opened)
    return request._replace(headers=headers, body=body, encoded_body=b"", encoding_headers=())


def require_history(request: ClientRequest) -> None:
    """Raises `PassOn` if the server holds part of the history or takes no other body, `BadRequest` if one is needed."""
    body, named = request.body, dict(request.headers)
    roles = () if body.is_text else (each.role for each in body.elements)
    is_signed = SIGNATURE in named or named.get(BEARER[0], b"").startswith(SIGNED)
    state = Reason.SIGNED_BODY if is_signed else body.endpoint.server_state(body.values, roles)
    if state is None:
        return
    if request.controls.needs_reading:
        raise BadRequest("A dry run, and append mode, need the whole history, in an unsigned request.", param="dry-run")
    if is_signed:
        raise PassOn(state, request.encoded_body or body.data, upstream=request.upstream)
    raise as_it_came(request, state)


def as_it_came(request: ClientRequest, reason: Reason) -> PassOn:
    """A request that was read, to be forwarded as it came, apart from what it asks of the proxy."""
    body = request.body
    sent = body.spliced(model=request.model if request.has_suffix else None)
    if sent == body.data:
        return PassOn(reason, request.encoded_body or body.data, upstream=request.upstream)
    return PassOn(reason, sent, is_changed=True, upstream=request.upstream)


async def receive_body(client: ClientStream, limit: int, place: Place) -> bytes:
    """Receives the request's body; raises `BodyTooLarge` as soon as it gets larger than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    while not client.body_was_read:
        part = await client.read_part()
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.")
        if part:
            place.hold(len(part))
            parts.append(part)
    return b"".join(parts)


def _client_request(admitted: AdmittedRequest, body: wire.Body, encoded_body: bytes) -> ClientRequest:
    scope, services, owner, endpoint = admitted.scope, admitted.services, admitted.owner, body.endpoint
    model, suffix = controls.split_model(body.values.get("model"))
    member = endpoint.controls_member
    asked = controls.read(scope["headers"], body.values.get(member.name), suffix, services.permit, member)
    if suffix is None and model and "@" in model and (warning := controls.suffix_warning(model)):
        asked = replace(asked, warnings=(*asked.warnings, warning))
    prefix = scope.get("path_params", {}).get("prefix")
    if owner.key is not None:
        path = f"/{prefix}" if prefix else ""
        is_listed = bool({path, path.removesuffix("/v1")} & set(services.settings.server.prefixes))
        check_permitted(owner.key, model, body.values, asked, unlisted="" if is_listed else path)
    upstream = destination_of(services.destinations, endpoint.dialect.name, scope["headers"], model or "", asked)
    tenant = owner.tenant_at(upstream)
    if tenant != owner.tenant:
        admitted.line.tenant = services.tenants.shown(tenant)
    admitted.place.enter_upstream(upstream.name, upstream.in_flight)
    headers, encoding_headers = upstream.forwarded(scope["headers"], endpoint.key_header), []
    if encoded_body:
        # The headers of the encoding are kept apart, because other bodies are not encoded.
        encoding_headers = [pair for pair in headers if pair[0] == ENCODING]
        headers = [pair for pair in headers if pair[0] != ENCODING]
    # A request to a path with a provider's prefix is forwarded to that path.
    return ClientRequest(
        tenant=tenant,
        upstream=upstream,
        headers=headers,
        body=body,
        model=model or "",
        has_suffix=suffix is not None,
        path=scope["raw_path"] if prefix else b"",
        query=scope["query_string"] and upstream.query(scope["query_string"]),
        controls=asked,
        received_at=services.clock(),
        encoded_body=encoded_body,
        encoding_headers=encoding_headers,
        place=admitted.place,
        until_answered=admitted.until_answered,
        trust=services.callers.trust_in(owner, upstream),
    )
