"""Requests that are answered here: dry runs, and compactions of the proxy's own where the upstream has none.

Compactions are asked for by `POST /v1/responses/compact`, and by a `compaction_trigger`. The history is condensed at
once by the strategy of the session, as `X-Condenser-Force` does, and the client gets what stands for it as one item of
its own protocol (`proxy/bodies/compaction_items.py`). Where that is not possible, because the strategy is `off` or
nothing can be condensed, the client gets the upstream's own error.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.bodies.wire import ClientRequest
from proxy.condensing import account
from proxy.condensing.attempt import Turn
from proxy.condensing.traits import client_compaction
from proxy.conversations.keeping import Keeper
from proxy.errors import CredentialUnproven
from proxy.http.headers import encode_headers, is_success
from proxy.protocols.endpoint import Compacting
from proxy.protocols.opening import open_reply
from proxy.protocols.own_compactions import (
    Parts,
    compaction_document,
    parted,
    response_document,
    response_events,
    usage_of,
)
from proxy.protocols.replies import Items, Json, JsonCapture
from proxy.protocols.watching import WatchedReply
from proxy.servers.refusals import Subject
from proxy.servers.upstream import UpstreamReply
from proxy.settings.profile import Restriction
from proxy.store.base import StoreError
from proxy.turn.reading import AdmittedRequest, ClientGone, admit
from proxy.turn.relay import Relay
from proxy.turn.sending import headers_of, posted
from proxy.values import objects_at
from strategies.core.client_compaction import marks_of
from strategies.core.messages import dump
from strategies.core.parsing import loads

if TYPE_CHECKING:
    from proxy.services import Services


class Decide(Protocol):
    """What decides on a request (`proxy/turn/drive.py`)."""

    def __call__(self, services: Services, asked: ClientRequest) -> Awaitable[Turn]: ...


class Served(ABC):
    """What is served at a path whose requests are not sent as they are."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; raises `ProxyError`."""
        came = admit(scope, receive, send)
        try:
            app = await self.app_for(came)
            came.line.is_relayed = isinstance(app, Relay)
            await came.answer(app)
        except ClientGone:
            await came.leave_unanswered()
        finally:
            await came.end()

    @abstractmethod
    async def app_for(self, came: AdmittedRequest) -> ASGIApp:
        """The answer to a request; raises `ProxyError` and `ClientGone`."""


async def answered_here(came: AdmittedRequest, turn: Turn, decide: Decide) -> Response | None:
    """The answer to a request that is not sent; None if it is."""
    if turn.asked.controls.dry_run:
        return own_reply(account.dry_run(turn.sent.decision), turn)
    if _is_trigger(turn) and not turn.sent.decision.context.policy.profile.compaction_trigger:
        return await _own_compaction(came, turn, decide)
    return None


async def answered_instead(came: AdmittedRequest, turn: Turn, reply: UpstreamReply, decide: Decide) -> Response | None:
    """The answer in place of the upstream's, if it has refused to compact; None if the client gets the upstream's."""
    if not (_is_trigger(turn) and Subject.TRIGGER in turn.refusal.subjects):
        return None
    if not turn.sent.decision.context.policy.profile.compaction_trigger:
        return None  # there was none of ours either
    answer = await _own_compaction(came, turn, decide)
    if answer is not None:
        await reply.close()
        came.services.servers.profiles.learn(turn.asked.lesson_scope, [Restriction("compaction_trigger", value=False)])
    return answer


def _is_trigger(turn: Turn) -> bool:
    """Whether the request ends with a trigger for a compaction, which upstreams may refuse."""
    aside = turn.sent.decision.context.aside
    return aside is client_compaction.BY[Compacting.SIGNAL] and bool(turn.asked.body.endpoint.compact_path)


async def _own_compaction(came: AdmittedRequest, standing: Turn, decide: Decide) -> Response | None:
    """The proxy's own compaction, in place of the upstream's; None if there cannot be one."""
    try:
        made = await own_compaction(standing, came.services, decide, is_trigger=True)
    except CredentialUnproven:
        return None
    if made is None:
        return None
    response, came.line.turn = made
    return response


def own_reply(data: bytes | str, turn: Turn) -> Response:
    """The proxy's own reply to a request that was decided on but not sent."""
    response = Response(data, media_type="application/json")
    response.raw_headers.extend(encode_headers(headers_of(turn, accepted=False)))
    return response


# -- compactions -------------------------------------------------------------------------------------------------


async def serve_compaction(request: ClientRequest, turn: Turn, admitted: AdmittedRequest, decide: Decide) -> ASGIApp:
    """Answers a request for a compaction: relays the upstream's own, or makes one if the upstream has none.

    `request` is at the path that answers its like; the `turn` has its view as it stands. Raises `ProxyError`.
    """
    services, endpoint = admitted.services, request.body.endpoint
    decision = turn.sent.decision
    standing, is_missing = replace(turn, asked=request), not decision.context.policy.profile.compact_endpoint
    if is_missing and (own := await own_compaction(standing, services, decide, is_trigger=False)):
        return own[0]
    ending = endpoint.compact_path.removeprefix(endpoint.path).encode()
    sent = posted(admitted, turn, decision.body)
    headers = [pair for pair in sent.headers if pair[0] != b"accept-encoding"]  # the answer is read
    reply = await services.upstream.send(sent._replace(path=request.target + ending, headers=headers))
    services.callers.note_status(request.trust, reply.status, shares=not request.controls.no_store)
    opened = await open_reply(endpoint, reply, holds=False)
    own = None
    if not is_missing and Subject.COMPACT_PATH in opened.refusal.subjects:
        own = await own_compaction(standing, services, decide, is_trigger=False)
    if own is not None:
        await opened.reply.close()
        services.servers.profiles.learn(request.lesson_scope, [Restriction("compact_endpoint", value=False)])
        return own[0]
    relay = Relay(endpoint, admitted.client, opened.reply, encode_headers(headers_of(turn, accepted=False)))
    if is_success(reply.status):
        watched = WatchedReply(endpoint, reply.headers, JsonCapture(_output))
        relay.watched, relay.settle = watched, lambda: _note_compaction(services.keeper, turn, watched.items())
        relay.start_task = partial(services.background.own, to_its_end=True)
    return relay


def _output(document: Any) -> Items:
    return objects_at(document, "output")


async def own_compaction(
    standing: Turn, services: Services, decide: Decide, *, is_trigger: bool
) -> tuple[Response, Turn] | None:
    """The proxy's own compaction for a request, and the turn that has made it.

    None if its history cannot be condensed, or no item can be signed.

    The view as it is `standing` is enough if it has what a condensation aims at, as when a client asks again. Raises
    `ProxyError`, for instance if the upstream does not accept the caller.
    """
    request, turn, decision = standing.asked, standing, standing.sent.decision
    budget = decision.context.sized.budget
    if budget is None or not decision.context.policy.rewrites:
        return None
    await request.prove()  # what is stored goes into the answer
    if decision.applied is None or decision.tokens_after > budget.target:
        turn = await decide(services, request._replace(controls=replace(request.controls, force=True)))
        decision = turn.sent.decision
    if not (decision.view.is_changed and decision.tokens_after < decision.context.history.sent.tokens):
        return None
    one = secrets.token_hex(12)
    parts = parted(decision.view, one, keeps_users=is_trigger)
    try:
        item = await services.compaction_items.item(parts.sealed, request.tenant)
    except StoreError:
        return None
    await _note_compaction(services.keeper, turn, list(map(loads, parts.sealed[:1])))
    response = _answer(turn, one, parts, item, is_trigger=is_trigger)
    response.raw_headers.extend(encode_headers(headers_of(turn)))
    return response, turn


async def _note_compaction(keeper: Keeper, turn: Turn, answer: Items) -> None:
    """Keeps by what the answer to a compaction is known, if no turn of the conversation has asked for it."""
    context, own_tokens = turn.sent.decision.context, turn.sent.decision.own_tokens
    if context.branch is None or turn.asked.controls.no_store or context.recognised.failure:
        return
    name, marks = context.branch.name, marks_of(answer, context.server.counter.dialect)
    await keeper.amend(
        context.recognised,
        lambda session: session.with_compaction(name, marks).with_totals(own_tokens=own_tokens),
        creates=False,
        index=marks,
    )


def _answer(turn: Turn, one: str, parts: Parts, item: Json, *, is_trigger: bool) -> Response:
    decision, request = turn.sent.decision, turn.asked
    counter, scale = decision.context.server.counter, decision.context.sized.calibrated.scale
    written = sum(counter.message(loads(text)) for text in parts.sealed)
    usage = usage_of(scale.upstream(decision.context.history.sent.tokens), written)
    if not is_trigger:
        document = compaction_document(one, request.received_at, parts.kept, item, usage)
        return Response(document.encode("utf-8", "surrogatepass"), media_type="application/json")
    response = response_document(one, request.received_at, request.model, item, usage)
    if request.body.values.get("stream") is True:
        return Response(b"".join(response_events(response)), media_type="text/event-stream")
    return Response(dump(response), media_type="application/json")
