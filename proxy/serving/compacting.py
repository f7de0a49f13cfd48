"""Compactions for clients whose upstream has none: `POST /v1/responses/compact`, and a `compaction_trigger`.

The history is condensed at once by the strategy of the session, as `X-Condenser-Force` does, and the client gets what
stands for it as one item of its own protocol (`proxy/request/compaction_items.py`). Where that is not possible, because
the strategy is `off` or nothing can be condensed, the client gets the upstream's own error.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import ASGIApp

from proxy.condensing.exchange import Exchange
from proxy.endpoints.own_compactions import (
    Parts,
    compaction_document,
    parted,
    response_document,
    response_events,
    usage_of,
)
from proxy.endpoints.replies import Items, Json, JsonCapture
from proxy.http.headers import encode_headers, is_success
from proxy.knowledge.profiles import NO_ENDPOINT, lacks_compact_endpoint
from proxy.reply.opening import open_reply
from proxy.reply.watching import WatchedReply
from proxy.request.wire import ClientRequest
from proxy.services import Services
from proxy.serving.reading import AdmittedRequest
from proxy.serving.relay import Relay
from proxy.store.base import StoreError
from proxy.upstream import UpstreamRequest
from proxy.values import objects_at
from strategies.core.messages import dump
from strategies.core.parsing import loads


async def serve_compaction(request: ClientRequest, exchange: Exchange, admitted: AdmittedRequest) -> ASGIApp:
    """Answers a request for a compaction: relays the upstream's own, or makes one if the upstream has none.

    `request` is at the path that answers its like; the `exchange` has its view as it stands. Raises `ProxyError`.
    """
    services, endpoint = admitted.services, request.body.endpoint
    is_missing = not exchange.decision.policy.profile.compact_endpoint
    if is_missing and (own := await own_compaction(exchange, request, services, is_trigger=False)):
        return own.response
    ending = endpoint.compact_path.removeprefix(endpoint.path).encode()
    headers = [pair for pair in request.headers if pair[0] != b"accept-encoding"]  # the answer is read
    target = request.upstream.base_url, "POST", request.target + ending, request.query
    admitted.place.ease()
    reply = await services.upstream.send(UpstreamRequest(*target, headers, exchange.decision.body))
    services.callers.note_status(request.trust, reply.status, shares=not request.controls.no_store)
    opened = await open_reply(endpoint, reply, holds=False)
    own = None
    if not is_missing and lacks_compact_endpoint(reply.status, opened.error):
        own = await own_compaction(exchange, request, services, is_trigger=False)
    if own is not None:
        await opened.reply.close()
        services.exchanges.refusals.knowledge.profiles.learn(request.lesson_scope, [NO_ENDPOINT])
        return own.response
    relay = Relay(endpoint, admitted.client, opened.reply, encode_headers(exchange.headers(accepted=False)))
    if is_success(reply.status):
        watched = WatchedReply(endpoint, reply.headers, JsonCapture(_output))
        relay.watched, relay.settle = watched, lambda: exchange.note_compaction(watched.items())
        relay.start_task = partial(services.background.own, to_its_end=True)
    return relay


def _output(document: Any) -> Items:
    return objects_at(document, "output")


class OwnCompaction(NamedTuple):
    """The answer to a request for a compaction, and the exchange that has made it."""

    response: Response
    exchange: Exchange


async def own_compaction(
    standing: Exchange, request: ClientRequest, services: Services, *, is_trigger: bool
) -> OwnCompaction | None:
    """The proxy's own compaction for a request; None if its history cannot be condensed, or no item can be signed.

    The view as it is `standing` is enough if it has what a condensation aims at, as when a client asks again. Raises
    `ProxyError`, for instance if the upstream does not accept the caller, and `HeldByServer`.
    """
    exchange, budget = standing, standing.decision.context.own_budget
    if budget is None or not standing.decision.policy.rewrites:
        return None
    await request.prove()  # what is stored goes into the answer
    if standing.decision.applied is None or standing.decision.tokens_after > budget.target:
        forced = request._replace(controls=replace(request.controls, force=True))
        exchange = await services.exchanges.open(forced)
    decision = exchange.decision
    if not (decision.view.is_changed and decision.tokens_after < decision.tokens_before):
        return None
    one = secrets.token_hex(12)
    parts = parted(decision.view, one, keeps_users=is_trigger)
    try:
        item = await services.compaction_items.item(parts.sealed, request.tenant)
    except StoreError:
        return None
    await exchange.note_compaction(list(map(loads, parts.sealed[:1])))
    response = _answer(exchange, one, parts, item, is_trigger=is_trigger)
    response.raw_headers.extend(encode_headers(exchange.headers()))
    return OwnCompaction(response, exchange)


def _answer(exchange: Exchange, one: str, parts: Parts, item: Json, *, is_trigger: bool) -> Response:
    decision, request = exchange.decision, exchange.request
    counter, scale = decision.context.counter, decision.context.calibrated.scale
    written = sum(counter.message(loads(text)) for text in parts.sealed)
    usage = usage_of(scale.upstream(decision.tokens_before), written)
    if not is_trigger:
        document = compaction_document(one, request.received_at, parts.kept, item, usage)
        return Response(document.encode("utf-8", "surrogatepass"), media_type="application/json")
    response = response_document(one, request.received_at, request.model, item, usage)
    if request.body.values.get("stream") is True:
        return Response(b"".join(response_events(response)), media_type="text/event-stream")
    return Response(dump(response), media_type="application/json")
