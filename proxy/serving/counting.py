"""What a request would cost: the upstream counts the view that would be sent. Nothing is stored, and no model asked.

Clients compact their history by this count, so it must agree with the usage that they are shown. An upstream that
cannot count is no reason to fail: then the answer is the proxy's own count, as calibrated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp

from proxy.condensing.exchange import Exchange
from proxy.endpoints.endpoint import Endpoint
from proxy.http.headers import encode_headers
from proxy.log import LINE
from proxy.reasons import Reason
from proxy.request.callers import ALWAYS
from proxy.request.wire import ClientRequest
from proxy.services import Services
from proxy.serving.passthrough import pass_unread
from proxy.serving.reading import Arrival, Placed, read_request, shows_original_usage
from proxy.serving.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming, Relay, Unread
from proxy.upstream import UpstreamRequest

_CANNOT_COUNT = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


@dataclass(frozen=True, slots=True)
class Counting(Placed):
    """What is served where an endpoint's requests are counted, as an ASGI app."""

    endpoint: Endpoint

    async def serve(self, arrival: Arrival) -> None:
        """Has the upstream count the view of a request, or the request itself if clients are shown what that costs."""
        await arrival.answer(await self._count(arrival))

    async def _count(self, arrival: Arrival) -> ASGIApp:
        if shows_original_usage(arrival.services, self.endpoint, arrival.scope["headers"]):
            return await pass_unread(arrival, Unread(Reason.NOT_CONDENSED_ENDPOINT))
        try:
            asked = await read_request(self.endpoint, arrival)
            arrival.scope[LINE].model = asked.model
            return await arrival.incoming.unless_gone(_counted(asked, arrival.services, arrival.incoming))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Unread as unread:
            return await pass_unread(arrival, unread)


async def _counted(asked: ClientRequest, services: Services, incoming: Incoming) -> ASGIApp:
    endpoint = asked.body.endpoint
    # A dry run stores nothing and asks no model. The caller sees none of the view, so it need not prove who it is.
    asked = asked._replace(controls=replace(asked.controls, dry_run=True), trust=ALWAYS)
    exchange: Exchange = await services.condenser.exchange(asked)
    own_headers = encode_headers(exchange.headers(accepted=False))
    path = asked.path or endpoint.count_path.encode()
    sent = UpstreamRequest("POST", path, asked.query, asked.headers, exchange.decision.body)
    reply = await services.upstream.send(sent)
    if reply.status not in _CANNOT_COUNT:
        return Relay(endpoint, incoming, reply, own_headers)
    await reply.close()
    response = Response(json.dumps(endpoint.counted(exchange.decision.expected_tokens)), media_type="application/json")
    response.raw_headers.extend(own_headers)
    return response
