"""Requests to count a list, or to compact it: the view that would be sent goes to the upstream's own counting.

No turn is stored, and no model is asked, unless the upstream has no compaction (`ends.py`). Clients compact their
history by the count, so it must agree with the usage that they are shown; if the upstream cannot count, the answer is
the proxy's own calibrated count. To be compacted, clients send their whole list, which may be too long by then, because
the proxy has condensed it for all other requests: the view goes as it stands.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from http import HTTPStatus

from starlette.types import ASGIApp

from proxy.bodies.wire import ClientRequest
from proxy.condensing import account
from proxy.errors import CredentialUnproven
from proxy.http.headers import encode_headers
from proxy.protocols.endpoint import Endpoint
from proxy.reasons import Reason
from proxy.turn.drive import decide
from proxy.turn.ends import Served, own_reply, serve_compaction
from proxy.turn.passing import pass_on_unread
from proxy.turn.reading import (
    AdmittedRequest,
    PassOn,
    as_it_came,
    read_request,
    require_history,
    spend,
)
from proxy.turn.relay import Relay
from proxy.turn.sending import headers_of, note_answer, posted

_CANNOT_COUNT = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


@dataclass(frozen=True, slots=True)
class ReadOnly(Served):
    """What is served where an endpoint's requests are counted, or where the upstream compacts its lists."""

    endpoint: Endpoint
    compacts: bool = False

    async def app_for(self, came: AdmittedRequest) -> ASGIApp:
        try:
            asked = await read_request(self.endpoint, came)
            with came.client.unless_gone():
                await spend(came, asked)
                return await self._answer(asked._replace(until_answered=None), came)
        except CredentialUnproven:
            if asked.controls.dry_run:
                raise
            # Nothing stored is shown to the upstream for this caller: it judges the request as it came.
            return await pass_on_unread(came, as_it_came(asked, Reason.CREDENTIAL_UNPROVEN))
        except PassOn as unread:
            return await pass_on_unread(came, unread)

    async def _answer(self, asked: ClientRequest, came: AdmittedRequest) -> ASGIApp:
        """Sends the view, and relays the reply."""
        require_history(asked)
        endpoint, services = self.endpoint, came.services
        path = endpoint.compact_path if self.compacts else endpoint.count_path
        # A dry run stores nothing and asks no model; it is one of a request at the path that answers its like.
        answering = asked.path.removesuffix(path.removeprefix(endpoint.path).encode())
        answered = asked._replace(path=answering)
        as_dry_run = answered._replace(controls=replace(asked.controls, dry_run=True))
        turn = await decide(services, as_dry_run, as_it_stands=self.compacts)
        if asked.controls.dry_run:
            return own_reply(account.dry_run(turn.sent.decision), turn)
        if self.compacts:
            return await serve_compaction(answered, turn, came, decide)
        sent = posted(came, turn, turn.sent.decision.body)
        reply = await services.upstream.send(sent._replace(path=asked.path or path.encode()))
        note_answer(came, turn, reply)
        if reply.status in _CANNOT_COUNT:
            await reply.close()
            return own_reply(json.dumps(endpoint.counted(turn.sent.decision.expected_tokens)), turn)
        return Relay(endpoint, came.client, reply, encode_headers(headers_of(turn, accepted=False)))
