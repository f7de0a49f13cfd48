"""One request to a condensed endpoint, from top to bottom.

    read      what is asked, and of whom                               `proxy/turn/reading.py`
    take in   who asks, what its server and its session are known for, and how large it is
    decide    which view is forwarded                                  `proxy/condensing/deciding.py`
    send      it, and what follows on each refusal                     `proxy/condensing/refusals.py`
    relay     the reply, byte for byte                                 `proxy/turn/relay.py`
    settle    learn from the reply, and store the session, before its last byte
    follow up start the work that has become due                       `proxy/condensing/preparing.py`

The functions stand in the order of their calls. What is found is put into a `Turn`, which the log line keeps: its
record is made once. An internal error costs headroom, never the request: if our own analysis crashes, the request is
forwarded unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.bodies.wire import ClientRequest
from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Turn, idle_decision, last_resort, undecided
from proxy.condensing.completing import is_idle
from proxy.condensing.deciding import standing_decision
from proxy.condensing.refusals import log_original, looked_at
from proxy.condensing.traits import ASIDES
from proxy.condensing.turn import RequestContext, context_of, in_session
from proxy.conversations.keeping import SessionUpdate
from proxy.errors import DEFECT, HistoryUnavailable, ProxyError, UpstreamUnavailable
from proxy.http.headers import encode_headers, is_success
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.opening import OpenedReply
from proxy.protocols.replies import Items
from proxy.protocols.watching import WatchedReply
from proxy.servers.refusals import NO_REFUSAL
from proxy.servers.upstream import UpstreamReply
from proxy.turn.ends import answered_here, answered_instead
from proxy.turn.layer import error_response
from proxy.turn.passing import pass_on_unread
from proxy.turn.reading import AdmittedRequest, ClientGone, PassOn, admit, read_request, require_history, spend
from proxy.turn.relay import Relay
from proxy.turn.sending import (
    accepted,
    at_server,
    editor_of,
    headers_of,
    note_answer,
    note_failed,
    posted,
    read_through,
    relayed,
    session_after,
    store_append,
)

if TYPE_CHECKING:
    from proxy.services import Services

Waiting = Iterable[Callable[[], Awaitable[object]]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CondensedEndpoint:
    """What is served at an endpoint's path."""

    endpoint: Endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request. An exception becomes an error response; if the client leaves, all is cancelled."""
        came = admit(scope, receive, send)
        services, line = came.services, came.line
        services.under_way.add(line)
        came.at_end.append(partial(services.under_way.discard, line))
        try:
            asked = await read_request(self.endpoint, came)
            with came.client.unless_gone():
                await spend(came, asked)
                require_history(asked)
                turn = line.turn = await decide(services, asked)
                # A dry run is answered here, and what the upstream cannot do beside the conversation.
                answer: ASGIApp | None = None
                if asked.controls.dry_run or turn.sent.decision.context.aside is not None:
                    answer = await answered_here(came, turn, decide)
                if answer is None:
                    await at_server(came, turn)
                    reply = await forward(came, turn)
                    if turn.refusal.status and turn.sent.decision.context.aside is not None:
                        answer = await answered_instead(came, turn, reply, decide)
                    answer = answer or await relay(came, turn, reply)
                await came.answer(answer)
        except PassOn as unread:
            await came.answer(await pass_on_unread(came, unread))
        except ClientGone:
            await came.leave_unanswered()
        except Exception as error:
            if came.is_replying:
                raise
            await came.answer(error_response(_told(came, error), self.endpoint.path))
        finally:
            if line.turn is not None:
                line.turn.record or line.turn.put_down()
            await came.end()


def _told(came: AdmittedRequest, error: Exception) -> ProxyError:
    """The error that the client is told; a defect is logged."""
    if not isinstance(error, ProxyError):
        _log.error("serving the request failed", exc_info=error)
        return ProxyError(DEFECT)
    came.line.error = error.code or error.type
    if isinstance(error, HistoryUnavailable):
        came.services.stored.outage.count_request(is_refused=True)
    return error


# -- decide ----------------------------------------------------------------------------------------------------


async def decide(services: Services, asked: ClientRequest, *, as_it_stands: bool = False) -> Turn:
    """What is sent for a request, and why; raises only `ProxyError`.

    A dry run forwards nothing, so there an internal error propagates too. With `as_it_stands` nothing new is condensed.
    """
    context, timing, controls = None, Timing(), asked.controls
    try:
        context = await take_in(services, asked, timing)
        started = perf_counter()
        if as_it_stands:
            decision = standing_decision(context)
        else:
            decision = idle_decision(context) if context.is_idle else await services.decider.decide(context)
        sent = services.attempts.of(decision)
        timing.condense += (perf_counter() - started) * 1000
    except Exception as error:
        if isinstance(error, ProxyError) and context is not None and not controls.dry_run:
            await note_failed(services, Turn(asked, timing, Attempt(undecided(context))), error.status)
        if isinstance(error, ProxyError) or controls.dry_run or as_it_stands:
            raise
        _log.exception("reading the request failed; it is forwarded unchanged")
        sent = Attempt(last_resort(asked))
    return Turn(asked, timing, sent)


async def take_in(services: Services, asked: ClientRequest, timing: Timing) -> RequestContext:
    """All that must be known of a request before it is decided on; raises `ProxyError`.

    The order matters. The history that an append continues is supplied first, because its tokens count too. Then the
    list is measured, which also gives its chain of digests; the chain leads to the session, which shows whether the
    client has left messages out; and the settings of the session have a say in the policy.
    """
    endpoint, values, controls, completer = asked.body.endpoint, asked.body.values, asked.controls, services.completer
    # Who asks, and what is known of the server. All of it is in memory after the first request.
    who = services.recogniser.identify(controls.session, asked.headers, endpoint, values)
    patience, started = services.stored.patience(), perf_counter()
    counter = services.tokenizers.for_model(asked.model, endpoint.counter, asked.tenant)
    waits = None if services.policies.is_off(controls.strategy, asked.model) else patience
    of_model = asked.lesson_scope, counter, controls.window, waits
    is_long, upstream = endpoint.asks_for_long(asked.headers), asked.upstream
    pays = upstream.has_list_prices and upstream.charges(asked.headers, is_login=asked.trust.is_claimed)
    server = await services.servers.known(*of_model, is_long=is_long, pays=pays)
    # The history that an append continues.
    await asked.trust.look_up(patience)
    asked, append = await services.supplier.appended(asked, who, patience) if controls.append else (asked, None)
    supplied = perf_counter()
    # How large it is: by its length alone, if that proves that it is below every mark.
    sent = await completer.measure(asked, server)
    counted = perf_counter()
    # The session and the branch that it continues, and the messages that its client has left out of that.
    place = await services.recogniser.recognise(asked.tenant, who, sent.transcript, patience, asked.trust)
    asked, place, sent, whole = await services.supplier.completed(asked, place, sent, server.counter)
    if controls.dry_run and place.knows_stored:
        await asked.prove()
    # What applies to it.
    server = in_session(server, place, services.servers.learned.sizes, services.clock())
    policy = services.policies.for_request(asked, place.session, server)
    if policy.scope:
        place = await services.recogniser.with_card_scope(place, policy.scope, read=any(policy.memory))
    if whole is not sent and policy.rewrites:
        policy = policy.with_dropping()
    aside = None if append else ASIDES.get(endpoint.aside(asked.headers, values, sent.transcript))
    context = context_of(asked, place, policy, server, sent, whole, append=append, aside=aside)
    # The early exit: most requests end here.
    context = completer.idle(context) if is_idle(context) else await completer.complete(context)
    timing.count, timing.session = (counted - supplied) * 1000, (perf_counter() - counted + supplied - started) * 1000
    return context


# -- send ------------------------------------------------------------------------------------------------------


async def forward(came: AdmittedRequest, turn: Turn) -> UpstreamReply:
    """Sends a request, and returns the reply for the client; raises `UpstreamUnavailable`.

    If the upstream refuses an attempt, another may follow. Nothing has reached the client by then. If the upstream
    cannot be reached for the next attempt, the client gets the error that refused the one before.
    """
    services, refusals, timing = came.services, came.services.refusals, turn.timing
    refused: tuple[Attempt, OpenedReply] | None = None
    while True:
        started = perf_counter()
        try:
            timing.sends += 1
            reply = await services.upstream.send(posted(came, turn, turn.sent.decision.body))
            note_answer(came, turn, reply)
            answer = await looked_at(turn.sent, reply)
        except UpstreamUnavailable as error:
            if refused is None:
                error.headers = headers_of(turn, accepted=False)
                services.background.own(note_failed(services, turn, error.status))
                raise
            turn.sent, answer = refused
            break
        except BaseException:
            if refused is not None:
                await refused[1].reply.close()
            raise
        timing.upstream += (perf_counter() - started) * 1000
        if refused is not None:
            await refused[1].reply.close()
            log_original(turn.sent, refused[1], answer)
        if is_accepted := answer.is_accepted:
            break
        turn.refusal = answer.refusal
        step = await refusals.after(turn.sent, answer, timing)
        turn.sent = step.refused
        if step.following is None:
            break
        refused, turn.sent = (step.refused, answer), step.following
    if refused is not None or not is_accepted:
        await refusals.conclude(turn.sent, answer)
    reply = answer.reply if turn.sent.rounds is None else await read_through(came, turn, turn.sent.rounds, answer.reply)
    turn.reply = turn.reply._replace(status=reply.status)
    return reply


# -- relay -----------------------------------------------------------------------------------------------------


async def relay(came: AdmittedRequest, turn: Turn, reply: UpstreamReply) -> ASGIApp:
    """The response; what a later request depends on is stored only if the upstream accepted this one."""
    taken, services, endpoint = is_success(reply.status), came.services, turn.asked.body.endpoint
    passing = Relay(endpoint, came.client, reply, encode_headers(headers_of(turn, accepted=taken)))
    if not taken:
        services.background.own(note_failed(services, turn, reply.status))
        await came.until_answered.aclose()  # the history has not changed: the next append may begin
        return partial(relayed, came, turn, passing)
    capture = endpoint.capture(reply.headers) if turn.sent.captures else None
    passing.watched = watched = WatchedReply(endpoint, reply.headers, capture)
    passing.settle = partial(settle, services, turn, watched)
    passing.must_settle = bool(turn.sent.decision.context.heads[1])
    if turn.sent.stores and not turn.sent.decision.context.is_idle:
        passing.follow = partial(follow_up, services, turn)
    passing.start_task = partial(services.background.own, to_its_end=True)
    passing.editor = editor_of(turn, reply) if turn.sent.decision.probed else None
    return partial(relayed, came, turn, passing)


# -- settle ----------------------------------------------------------------------------------------------------


def settle(services: Services, turn: Turn, watched: WatchedReply) -> Awaitable[None] | None:
    """Learns from a complete reply at once, and returns what then stores the session; None if nothing is stored.

    Synchronous, because nothing may run between the end of a reply and the start of storing it. A defect in learning
    costs what the reply would have taught, not the session.
    """
    waiting = accepted(services.callers, turn) if watched.is_answer else ()
    turn.reply = turn.reply._replace(milliseconds=turn.timing.since_start)
    try:
        learn(services, turn, watched)
    except Exception:  # noqa: BLE001
        _log.exception("nothing was learned from a reply")
    turn.put_down()
    return store(services, turn, watched.items(), waiting) if turn.sent.stores or waiting else None


def learn(services: Services, turn: Turn, watched: WatchedReply) -> None:
    """What a complete reply teaches of the upstream, of the session's size, and of what the request has cost."""
    sent, reply, refusals = turn.sent, turn.reply, services.refusals
    ending = watched.ending() if sent.stores and sent.decision.context.recognised.identity.id is None else ""
    late = watched.refusal()
    if late is not NO_REFUSAL:
        # Its client has got it, because content had left before it.
        turn.sent = refusals.after_late(sent, late)
        turn.reply = reply._replace(ending=ending, is_late_refusal=True)
        return
    last, earlier = watched.usage(), sent.rounds.usages if sent.rounds else []
    usage = earlier[0] if earlier else last  # that of the view, which did not have the results of searches
    # The last one has the replies of all rounds, but only its own prompt.
    spent = sum([each.prompt for each in (*earlier, last) if each]) + (last.completion if last else 0)
    anchor = refusals.note_accepted(sent, usage, watched)
    turn.reply = reply._replace(ending=ending, spent=spent, usage=usage, anchor=anchor)


async def store(services: Services, turn: Turn, items: Items = (), waiting: Waiting = ()) -> None:
    """Stores what later requests need, after the writes that waited until the caller was accepted."""
    for write in waiting:
        await write()
    context, record = turn.sent.decision.context, turn.record or turn.put_down()
    is_answer = turn.asked.trust.accepted or context.append is not None
    if not (turn.sent.stores and is_answer):
        return  # a page, or what else was no answer of the endpoint
    if context.aside is not None:
        turn.reply = turn.reply._replace(marks=context.aside.marks(items, context.server.counter.dialect))
    after = partial(session_after, turn, record)
    update = SessionUpdate(context.history.kept, after, turn.sent.decision.view.covered_count, marks=turn.reply.marks)
    if context.append is None:
        is_all = context.history.kept is context.history.transcript
        found = context.recognised if is_all else context.recognised.continued_by(context.history.kept)
        await services.keeper.settle(found, update)
    else:
        await store_append(services, turn, update, context.append, items)


# -- follow up -------------------------------------------------------------------------------------------------


def follow_up(services: Services, turn: Turn) -> None:
    """Starts the work that has become due; raises nothing."""
    try:
        services.decider.preparer.follow_up(turn.sent.decision)
    except Exception:  # noqa: BLE001
        # The reply has been sent: a defect costs only what would have been ready for the next one.
        _log.exception("background work was not started")
