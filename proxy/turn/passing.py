"""Requests that are forwarded unread, and the relay of their replies.

`PassThrough` serves all other paths of the API. A request to a condensed endpoint goes this way too if its body is not
to be read (`PassOn`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from time import perf_counter

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy import controls
from proxy.callers.keys import check_unread
from proxy.errors import NotHere, ProxyError, UpgradeRefused
from proxy.http.headers import ENCODING, encode_headers, first, for_body
from proxy.log import LINE
from proxy.protocols import endpoint_at, protocol_at
from proxy.reasons import Action, Reason
from proxy.servers.discovery import LIST_PATH, MAX_BYTES
from proxy.servers.upstream import UpstreamReply, UpstreamRequest
from proxy.servers.upstream.choice import Destination, destination_of
from proxy.turn.reading import READ_WHOLE, AdmittedRequest, ClientGone, PassOn, admit, receive_body, spend_bytes
from proxy.turn.relay import Relay
from proxy.values import json_or_none, word_at

GENERATING = frozenset(  # the first path segments under `/v1/` of endpoints that ask a model, or hold what one is asked
    (
        *("completions", "responses", "conversations", "messages", "threads", "embeddings", "moderations"),
        *("images", "audio", "videos", "realtime"),
    )
)


class PassThrough:
    """Forwards requests under `/v1/` without reading them, and relays the replies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; raises `ProxyError` if it is refused before it was read."""
        if first(scope["headers"], b"upgrade"):
            raise UpgradeRefused
        admitted = admit(scope, receive, send)
        try:
            await admitted.answer(await self._app(admitted))
        except ClientGone:
            await admitted.leave_unanswered()
        finally:
            await admitted.end()

    async def _app(self, admitted: AdmittedRequest) -> ASGIApp:
        scope = admitted.scope
        if scope["method"] not in ("GET", "HEAD"):
            check_unread(admitted.owner.key)
        segment = scope["path"].removeprefix("/v1/").partition("/")[0]
        if segment == "v1":
            raise NotHere("The path names /v1 twice: this client adds it itself, so leave it out of its base URL.")
        is_bypassed = scope["method"] == "POST" and segment in GENERATING
        own_headers = _note_bypass(admitted, Reason.NOT_CONDENSED_ENDPOINT) if is_bypassed else []
        return await _forward(admitted, own_headers, is_counted=is_bypassed)


async def pass_on_unread(admitted: AdmittedRequest, unread: PassOn) -> ASGIApp:
    """Forwards a request to a condensed endpoint that is not read; returns the app that relays the reply."""
    own_headers = _note_bypass(admitted, unread.reason)
    return await _forward(admitted, own_headers, unread, is_counted=True)


def _note_bypass(admitted: AdmittedRequest, reason: Reason) -> list[tuple[str, str]]:
    """Notes a request that asks a model and is not condensed; returns the headers that tell the client."""
    admitted.scope[LINE].outcome = Action.BYPASSED, reason
    return [("X-Condenser-Action", Action.BYPASSED), ("X-Condenser-Reason", reason)]


async def _forward(
    admitted: AdmittedRequest, own_headers: list[tuple[str, str]], unread: PassOn | None = None, *, is_counted: bool
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
    if unread and body and unread.is_changed:
        headers = for_body([pair for pair in headers if pair[0] != ENCODING], body)
    if length is not None and not isinstance(content, bytes):
        headers += [(b"content-length", length.encode())]
    if is_counted:
        stated = int(length[:20]) if length is not None and length.isdigit() else 0
        await spend_bytes(admitted, len(content) if isinstance(content, bytes) else stated, admitted.owner.tenant)
    await admitted.place.take(is_upload=not isinstance(content, bytes))
    admitted.place.ease()

    async def send() -> UpstreamReply:
        if isinstance(content, bytes):
            # A disconnect is noticed only after the client's body has been read to its end.
            async for _ in client.body():
                pass
        query = upstream.query(scope["query_string"])
        target = upstream.base_url, scope["method"], scope["raw_path"], query
        return await admitted.services.upstream.send(UpstreamRequest(*target, headers, content))

    try:
        with client.unless_gone():
            reply = await send()
    except ProxyError as error:
        error.headers = own_headers
        raise
    finally:
        scope[LINE].upstream_ms = (perf_counter() - started) * 1000
    scope[LINE].is_relayed = True
    relay = Relay(endpoint, client, reply, encode_headers(own_headers))
    _watch_list(relay, admitted, upstream)
    return relay


class _PassingList:
    """The bytes of a list of models, if it is not too long to be read."""

    def __init__(self) -> None:
        self.data = b""

    def feed(self, chunk: bytes) -> None:
        self.data += chunk[: MAX_BYTES + 1 - len(self.data)]


def _watch_list(relay: Relay, admitted: AdmittedRequest, upstream: Destination) -> None:
    """Has a list of models read once it has passed, for the tenant that it was sent to."""
    asked = admitted.scope["method"], admitted.scope["path"]
    if asked != ("GET", LIST_PATH) or relay.reply.status != HTTPStatus.OK:
        return
    owner, services, passing = admitted.owner, admitted.services, _PassingList()
    server, tenant = services.discovered[upstream.base_url], owner.tenant_at(upstream)
    # Anybody can say whose login it is, and some servers show their list to anybody.
    if server.enabled and (not owner.login or services.callers.trust_in(owner, upstream).accepted):
        relay.watched = passing
        relay.follow = lambda: services.background.start(server.read_list(tenant, passing.data, relay.reply.headers))


async def _upstream_unread(admitted: AdmittedRequest, content: bytes | AsyncIterator[bytes]) -> Destination:
    """The upstream of a request that is not read; of its JSON body the model is, if that matters and it came whole."""
    scope, services = admitted.scope, admitted.services
    given, model = controls.of_upstream(scope["headers"], services.permit), ""
    if isinstance(content, bytes) and any(each.models for each in services.destinations):
        model = word_at(await asyncio.to_thread(json_or_none, content), "model")
    return destination_of(services.destinations, protocol_at(scope["path"]), scope["headers"], model, given)
