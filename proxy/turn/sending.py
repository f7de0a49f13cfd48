"""What stands around sending a request: its place at the server, headers, what is read of a reply, and what stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from proxy.bodies.wire import ClientRequest
from proxy.callers.tenants import Callers
from proxy.condensing import account
from proxy.condensing.attempt import Turn, degraded
from proxy.condensing.traits import TRAITS
from proxy.conversations.keeping import SessionUpdate
from proxy.conversations.requests import RequestRecord
from proxy.conversations.searching import HiddenRounds, search
from proxy.conversations.session import DERIVED, Branch, Session
from proxy.conversations.supply import Append
from proxy.errors import HistoryUnavailable
from proxy.http.headers import DESCRIBING, encoding_of, first, for_body, is_event_stream
from proxy.protocols import compaction
from proxy.protocols.replies import Items
from proxy.protocols.watching import UsageRemover
from proxy.reasons import Action
from proxy.servers.discovery import Discovered
from proxy.servers.upstream import UpstreamReply, UpstreamRequest
from proxy.turn.reading import AdmittedRequest
from proxy.turn.relay import KeepAlive, Relay
from strategies.dialects.messages import MESSAGES

if TYPE_CHECKING:
    from proxy.services import Services

REFUSED = (429, 503)  # statuses after which the proxy's own background calls pause


async def at_server(came: AdmittedRequest, turn: Turn) -> None:
    """Returns once the request may go to its server: from now on the proxy's own calls to it wait."""
    services, decision, address = came.services, turn.sent.decision, turn.asked.upstream.base_url
    if decision.action is Action.DEGRADED and decision.reason.startswith("store-"):
        services.stored.outage.count_request()
    if decision.context.policy.asks_window:
        server = services.discovered[address]
        server.ask_if_due()
        came.at_end.append(server.ask_after_reply)  # a local server may have loaded a model with another window
        if server.is_for_one and not turn.asked.path:
            came.at_end.append(partial(_ask_for_list, server, turn.asked))
    # Not earlier: background calls yield to the foreground, and `decide` may wait for one that prepares its record.
    lane = services.asking.lane_of(address)
    lane.enter_foreground()
    came.at_end.append(lane.leave_foreground)
    await lane.cleared()
    if services.servers.pools:
        await services.refusals.room_for(turn.sent)


def _ask_for_list(server: Discovered, asked: ClientRequest) -> None:
    if asked.trust.accepted:
        server.ask_for_list(asked.tenant, asked.headers)


def posted(came: AdmittedRequest, turn: Turn, body: bytes) -> UpstreamRequest:
    """A body as it goes to the upstream, under the request's headers."""
    asked, headers = turn.asked, turn.asked.headers
    if turn.sent.rounds or turn.sent.decision.probed or turn.sent.captures:  # the reply is read or edited
        headers = [pair for pair in headers if pair[0] != b"accept-encoding"]
    view = turn.sent.decision.view
    if view.counter.dialect is MESSAGES and view.is_opaque:
        headers = compaction.accepting(headers)
    if asked.encoded_body and body is asked.body.data:
        body, headers = asked.encoded_body, [*headers, *asked.encoding_headers]
    elif body is not asked.body.data and not DESCRIBING.isdisjoint(dict(headers)):
        headers = for_body(headers, body)
    came.place.ease()  # not when its reply begins, which may take a model minutes
    return UpstreamRequest(asked.upstream.base_url, "POST", asked.target, asked.query, headers, body)


def note_answer(came: AdmittedRequest, turn: Turn, reply: UpstreamReply) -> None:
    """Notes what the status of an answer says of the caller and of the server."""
    asked, services = turn.asked, came.services
    services.callers.note_status(asked.trust, reply.status, shares=not asked.controls.no_store)
    if reply.status in REFUSED:
        # Noted here, because a refusal may never reach the client: a request after a search may be repeated.
        services.asking.lane_of(asked.upstream.base_url).note_refusal(first(reply.headers, b"retry-after"))


async def read_through(came: AdmittedRequest, turn: Turn, rounds: HiddenRounds, reply: UpstreamReply) -> UpstreamReply:
    """The reply for the client once the model's searches of its memory have been run."""

    async def send_body(body: bytes) -> UpstreamReply:
        answer = await came.services.upstream.send(posted(came, turn, body))
        note_answer(came, turn, answer)
        return answer

    return await search(reply, came.services.refusals.following(turn.sent, rounds, send_body))


async def relayed(
    came: AdmittedRequest, turn: Turn, relay: Relay, _scope: Scope, _receive: Receive, send: Send
) -> None:
    """Relays the reply to a turn; the pauses of a stream are filled, except under the strategy `off`."""
    line, asked, interval = came.line, turn.asked, came.services.settings.keepalive_interval
    line.is_relayed, keep_alive = True, None
    is_off = turn.sent.decision.context.policy.pipeline.is_off
    if interval and not is_off and asked.body.values.get("stream") is True:
        keep_alive = KeepAlive(send, interval, asked.body.endpoint.beat)
    try:
        await relay.pass_on(keep_alive.send if keep_alive else send)
    finally:
        line.is_complete |= relay.has_sent_all
        if relay.error is not None:
            line.error = relay.error.code or relay.error.type
            line.is_relayed = line.status == relay.reply.status  # else the error was sent in its place
        if keep_alive:
            await keep_alive.stop()


def accepted(callers: Callers, turn: Turn) -> Sequence[Callable[[], Awaitable[object]]]:
    """The writes that waited until the upstream has accepted the caller, which it now has."""
    return callers.accept(turn.asked.trust, shares=not turn.asked.controls.no_store)


def headers_of(turn: Turn, *, accepted: bool = True) -> list[tuple[str, str]]:
    """The proxy's own headers of the response; `accepted` tells if the upstream accepted the request.

    If it did not, a caller that it has not accepted lately learns nothing of what is stored, sizes included.
    """
    decision = turn.sent.decision
    if not accepted and decision.context.recognised.knows_stored and not turn.asked.trust.may_see_stored:
        return []
    return account.headers(decision, turn.timing, accepted=accepted)


def editor_of(turn: Turn, reply: UpstreamReply) -> UsageRemover | None:
    """What takes the usage that the client did not ask for out of a stream; one that came encoded passes with it."""
    is_editable = is_event_stream(reply.headers) and not encoding_of(reply.headers)
    return UsageRemover(turn.asked.body.endpoint) if is_editable else None


def session_after(
    turn: Turn, record: RequestRecord, session: Session, old: Branch | None, now: float
) -> tuple[Session, bytes]:
    """The session once a turn was answered, and the item of its journal, with the branch that the request has in it.

    `old` is the branch that it continues, None if it opens one.
    """
    sent, reply = turn.sent, turn.reply
    decision, rounds = sent.decision, sent.rounds
    context = decision.context
    policy, history = context.policy, context.history.kept
    facts: dict[str, Any] = {
        "applied": sent.last_applied,
        "reply": reply.ending if context.aside is None else "",
        "bound": sent.bound,
    }
    if reply.anchor is not None and context.aside is None:
        facts["anchor"] = reply.anchor
    branch = session.branch_after(old, history, now, has_tools=turn.asked.body.has_tools, **facts)
    more = {"own_tokens": decision.own_tokens, **turn.amounts}
    if rounds is not None and rounds.spent_tokens:
        more["memory_tokens"] = rounds.spent_tokens
    after = session.with_branch(
        old,
        branch,
        settings=session.settings if session.source == DERIVED else dict(policy.session_settings),
        strategy=policy.pipeline.text,
        window=policy.window.tokens,
    )
    after = after.with_totals(**more).with_model(record.model)
    if context.aside is not None:
        after = context.aside.settle(after, branch.name, reply.marks)
    # What an opaque head carries gets its place with the first view that has it.
    carried = decision.view.unplaced if decision.view.head_size else None
    patches = decision.memory_patch, carried, rounds.patch if rounds else None
    for patch in patches if session.patches or any(patches) else ():
        after = after.with_patch(patch, history.digests, decision.view.covered_count)
    if (had := session.traits) or context.traits:
        rows = [row for row in TRAITS if row.name in had or row.name in context.traits]
        values = {row.name: context.traits.get(row.name, had.get(row.name)) for row in rows if row.after is None}
        values |= {row.name: row.after(had.get(row.name), turn, now) for row in rows if row.after is not None}
        after = after._replace(traits={name: value for name, value in values.items() if value is not None})
    record = record if record.branch == branch.name else record._replace(branch=branch.name)
    return after, record.packed(after.models)


async def store_append(services: Services, turn: Turn, update: SessionUpdate, append: Append, items: Items) -> None:
    """Stores an append with its reply; raises `HistoryUnavailable` if they are not stored."""
    why = "its reply has no message that can be stored, or is too large"
    if items:
        tip, block = append.block(items)
        update = update._replace(tip=tip, tip_before=append.base, blocks={tip.block: block})
        why = await services.keeper.settle(turn.sent.decision.context.recognised, update)
        if turn.asked.until_answered is not None:
            # Before the last byte: the client may append to another replica at once.
            await turn.asked.until_answered.aclose()
        if not why:
            return
        turn.sent = turn.sent._replace(decision=degraded(turn.sent.decision, why))
        turn.put_down()
    error = HistoryUnavailable(f"This turn was not stored ({why}); the history ends where it ended before.")
    error.headers = headers_of(turn, accepted=False)
    raise error


def note_failed(services: Services, turn: Turn, status: int) -> Coroutine[Any, Any, None]:
    """Notes at once that a request was not answered; what it returns records that where its session is stored."""
    turn.reply = turn.reply._replace(status=status, milliseconds=turn.timing.since_start)
    return _record_failed(services, turn, turn.put_down())


async def _record_failed(services: Services, turn: Turn, record: RequestRecord) -> None:
    context = turn.sent.decision.context
    # A caller that the upstream has not accepted leaves nothing in a session.
    if context.may_store and turn.asked.trust.may_see_stored:
        await services.keeper.note_failed(context.recognised, record)
