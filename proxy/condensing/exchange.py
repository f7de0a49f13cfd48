"""One request, from its arrival to the work that follows its reply. The methods stand in the order of their calls.

    decide      take the request in, decide which view is forwarded, and write the body
    send        send it; if the upstream refuses it, learn from that and send something else
    settle      learn from the reply, and store the session before the reply's last byte
    follow_up   start the work that has become due

An `Attempt` is one request as it is sent; it never changes. If the upstream refuses an attempt, another may follow
(`refusals.py` lists them). Nothing has reached the client by then. If the upstream cannot be reached for the next
attempt, the client gets the error that refused the one before. An internal error costs headroom, never the request: if
our own analysis crashes, the request is forwarded unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any, TypeVar

from proxy.condensing import account
from proxy.condensing.attempt import Attempt, Attempts, ReplyFacts, Step, degraded, record_of, session_after
from proxy.condensing.deciding import Decider, standing_decision
from proxy.condensing.intake import Intake
from proxy.condensing.refusals import Refusals, is_perhaps_refused, may_be_refused
from proxy.condensing.turn import Decision, RequestContext, idle_decision, last_resort, undecided
from proxy.endpoints.replies import Items, Usage
from proxy.errors import HistoryUnavailable, ProxyError, UpstreamUnavailable
from proxy.knowledge.profiles import refuses_trigger
from proxy.overflow import MIN_WINDOW, RefusedPart
from proxy.quoting import label
from proxy.reasons import Reason
from proxy.reply.opening import OpenedReply, open_reply
from proxy.reply.watching import WatchedReply
from proxy.request.wire import ClientRequest
from proxy.searching import NO_OFFER, SendBody, search
from proxy.sessions.keeping import SessionUpdate
from proxy.sessions.requests import RequestRecord
from proxy.sessions.supply import Append, HeldByServer
from proxy.upstream import UpstreamReply
from strategies.core.client_compaction import marks_of
from strategies.dialects.messages import MESSAGES
from strategies.dialects.pictures import has_pictures

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Opens an exchange for each request, with the parts that all exchanges share; one per app.

    `report` is called with what followed on a refusal for length: `passed` (on to the client), `retried` or
    `refused-again`.
    """

    intake: Intake
    decider: Decider
    attempts: Attempts
    refusals: Refusals
    report: Callable[[str], None]

    async def open(self, request: ClientRequest) -> Exchange:
        """The exchange for a request, which has been decided on; raises `ProxyError` and `HeldByServer`."""
        exchange = Exchange(self, request)
        await exchange.decide()
        return exchange

    async def open_as_it_stands(self, request: ClientRequest) -> Exchange:
        """The exchange for a request to compact its view as it stands, without the memory tool; raises as `open`."""
        exchange = Exchange(self, request)
        context = (await self.intake.build_context(request, exchange.timing))._replace(offer=NO_OFFER)
        decision = standing_decision(context)
        exchange.take(self.attempts.of(decision._replace(reason=decision.reason or Reason.CLIENT_COMPACTION)))
        return exchange


class Exchange:
    """One request, what is sent for it, and what its reply has shown."""

    def __init__(self, parts: Exchanges, request: ClientRequest) -> None:
        self.request = request
        self.timing = account.Timing()
        self._started = perf_counter()
        self._parts = parts
        self._attempt: Attempt  # the attempt that is sent, or was sent last
        self.error = b""  # the error that its answer began with, as far as one was looked for
        self._reply = ReplyFacts()

    # -- decide --------------------------------------------------------------------------------------

    async def decide(self) -> None:
        """Takes the request in and decides on it; raises only `ProxyError` and `HeldByServer`.

        A dry run forwards nothing, so there an internal error propagates too.
        """
        parts, context = self._parts, None
        try:
            context = await parts.intake.build_context(self.request, self.timing)
            self._attempt = await self._decided(context)
        except Exception as error:
            if isinstance(error, ProxyError) and context is not None and not self.request.controls.dry_run:
                self._attempt = Attempt(undecided(context))
                await self.note_failed(error.status)
            if isinstance(error, ProxyError | HeldByServer) or self.request.controls.dry_run:
                raise
            _log.exception("reading the request failed; it is forwarded unchanged")
            self._attempt = Attempt(last_resort(self.request))

    async def _decided(self, context: RequestContext) -> Attempt:
        started = perf_counter()
        decision = idle_decision(context) if context.is_idle else await self._parts.decider.decide(context)
        attempt = self._parts.attempts.of(decision)
        self.timing.condense += (perf_counter() - started) * 1000
        return attempt

    def take(self, attempt: Attempt) -> None:
        self._attempt = attempt

    # -- what is sent, or was sent last --------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        return self._attempt.decision

    @property
    def usage(self) -> Usage | None:
        """What the upstream has counted."""
        return self._reply.usage

    @property
    def reads_reply(self) -> bool:
        """Whether the reply is read or edited, so that it must have no content encoding."""
        attempt = self._attempt
        return self.captures or bool(attempt.rounds or attempt.decision.probed)

    @property
    def captures(self) -> bool:
        """Whether what the model says in the reply is stored."""
        attempt = self._attempt
        return bool(attempt.decision.append_head) or (attempt.stores and attempt.context.compacting is not None)

    @property
    def has_compaction(self) -> bool:
        """Whether the list that is sent begins with a compaction of Anthropic, which needs a beta."""
        view = self._attempt.decision.view
        return view.is_opaque and view.counter.dialect is MESSAGES

    @property
    def stores(self) -> bool:
        return self._attempt.stores

    @property
    def record(self) -> RequestRecord:
        """What is recorded of the request, as far as it has come."""
        return record_of(self._attempt, self._reply)

    @property
    def spent(self) -> int:
        """The tokens that the upstream has counted for it, searches included; 0 if it has reported none."""
        rounds = self._attempt.rounds
        return self._reply.spent or (rounds.spent_tokens if rounds else 0)

    def headers(self, *, accepted: bool = True) -> list[tuple[str, str]]:
        """The headers of the response; `accepted` tells if the upstream accepted the request.

        If it did not, a caller that it has not accepted lately learns nothing of what is stored, sizes included.
        """
        knows_stored = self._attempt.context.recognised.knows_stored
        if not accepted and knows_stored and not self.request.trust.may_see_stored:
            return []
        return account.headers(self.decision, self.timing, accepted=accepted)

    # -- send ----------------------------------------------------------------------------------------

    async def send(self, send_body: SendBody) -> UpstreamReply:
        """Sends the request, and returns the reply for the client; raises `UpstreamUnavailable`.

        `send_body` sends a body to the upstream.
        """
        reply = await self._send_until_accepted(send_body)
        attempt = self._attempt
        if attempt.rounds is not None:
            reply = await search(reply, self._parts.refusals.following(attempt, attempt.rounds, send_body))
        self._reply = self._reply._replace(status=reply.status)
        return reply

    async def _send_until_accepted(self, send_body: SendBody) -> UpstreamReply:
        """Sends one attempt after the other until none follows, and returns the last reply."""
        refusals, answer = self._parts.refusals, await self._send_once(send_body)
        while not answer.is_accepted:
            self.error = answer.error
            if self._attempt.context.compacting is not None and refuses_trigger(answer.reply.status, answer.error):
                break  # no other form of the list helps
            self._attempt, following = await refusals.after(self._attempt, answer, self.timing)
            if following is None:
                break
            refused, self._attempt = self._attempt, following
            next_answer = await _replaced(answer.reply, self._send_once(send_body))
            if next_answer is None:
                self._attempt = refused
                break
            if Step.ORIGINAL in following.tried:
                self._log_original(answer.reply.status, next_answer.reply.status)
            answer = next_answer
        if Step.SMALLER in self._attempt.tried:
            is_accepted = answer.reply.status < HTTPStatus.BAD_REQUEST
            self._parts.report("retried" if is_accepted else "refused-again")
        elif answer.refusal is not None and answer.refusal.kind is not RefusedPart.OUTPUT:
            self._parts.report("passed")
        if answer.refusal is not None:
            await refusals.keep(self._attempt)
        elif answer.is_accepted:
            refusals.learn(self._attempt)
        return answer.reply

    async def _send_once(self, send_body: SendBody) -> OpenedReply:
        """Sends the attempt, and opens the reply if it may be a refusal; raises `UpstreamUnavailable`."""
        attempt, decision, started = self._attempt, self._attempt.decision, perf_counter()
        await self._parts.refusals.room_for(attempt)
        self.timing.sends += 1
        reply = await send_body(decision.body)
        is_error = reply.status >= HTTPStatus.BAD_REQUEST
        # No window is so small that a shorter prompt is refused for its length, but a cache may be full of others.
        is_long = decision.forwarded_tokens >= MIN_WINDOW or reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        view = decision.view
        is_ours = attempt.rounds is not None or view.is_changed or view.transcript.is_signed or decision.probed
        answer = OpenedReply(reply)
        # Pictures may leave. A body is searched for them only after an error, because that takes long.
        endpoint, context = self.request.body.endpoint, attempt.context
        is_about_compacting = context.compacting is not None or endpoint.management_member in self.request.body.values
        if is_long or (is_error and (is_ours or is_about_compacting or has_pictures(decision.body))):
            holds, briefly = may_be_refused(attempt), is_perhaps_refused(attempt)
            answer = await open_reply(endpoint, reply, holds=holds or briefly, briefly=not holds)
        if answer.refusal is not None:
            answer = answer._replace(refusal=answer.refusal.without_quoted(decision.body))
        self.timing.upstream += (perf_counter() - started) * 1000
        return answer

    def _log_original(self, rewritten: int, original: int) -> None:
        """Logs the statuses with which the upstream answered a rewritten request, and then the original."""
        text = "the upstream refused a condensed request for %s with status %s, for no known reason; %s"
        outcome = f"it refused the original with status {original}"
        if original < HTTPStatus.BAD_REQUEST:
            outcome = f"it accepted the original. A second time within an hour, {self.decision.session} is left alone"
        _log.warning(text, label(self.request.model), rewritten, outcome)

    # -- settle --------------------------------------------------------------------------------------

    def settle(self, watched: WatchedReply) -> Awaitable[None] | None:
        """Learns from a complete reply at once, and returns what then stores the session; None if nothing is stored.

        Synchronous, because nothing may run between the end of a reply and the start of storing it. A defect in
        learning costs what the reply would have taught, not the session.
        """
        self._take_time()
        try:
            self._learn(watched)
        except Exception:  # noqa: BLE001
            _log.exception("nothing was learned from a reply")
        return self.store(watched.items()) if self.stores else None

    def _take_time(self) -> None:
        self._reply = self._reply._replace(milliseconds=round((perf_counter() - self._started) * 1000))

    def note_failed(self, status: int) -> Coroutine[Any, Any, None]:
        """Notes at once that a request was not answered; what it returns records that where its session is stored."""
        self._take_time()
        self._reply = self._reply._replace(status=status)
        return self._record_failed()

    async def _record_failed(self) -> None:
        # A caller that the upstream has not accepted leaves nothing in a session.
        if self._attempt.context.may_store and self.request.trust.may_see_stored:
            await self._parts.decider.keeper.note_failed(self._attempt.context.recognised, self.record)

    def _learn(self, watched: WatchedReply) -> None:
        decision, rounds = self._attempt.decision, self._attempt.rounds
        if self.stores and decision.context.recognised.is_derived:
            self._reply = self._reply._replace(ending=watched.ending())
        refusals, refusal = self._parts.refusals, watched.refusal()
        if refusal is not None and refusal.kind is not RefusedPart.OUTPUT:
            # Its client has got it, because content had left before it.
            self._attempt = refusals.after_late(self._attempt, refusal)
            self._reply = self._reply._replace(is_late_refusal=True)
            self._parts.report("passed")
            return
        # The view did not have the results of searches: only the usage of the first round is that of the view.
        last, earlier = watched.usage(), rounds.usages if rounds else []
        usage = earlier[0] if earlier else last
        # The last one has the replies of all rounds, but only its own prompt.
        spent = sum(each.prompt for each in (*earlier, last) if each) + (last.completion if last else 0)
        self._reply = self._reply._replace(spent=spent)
        if decision.context.size_refused is not None:
            refusals.note_accepted(self._attempt, decision.context.size_refused)
        if usage is not None:
            anchor = refusals.knowledge.learn_from_usage(decision, usage)
            self._reply = self._reply._replace(usage=usage, anchor=anchor)

    async def store(self, items: Items = ()) -> None:
        """Stores what later requests need."""
        context = self._attempt.context
        append = context.append
        is_answer = self.request.trust.accepted or append is not None
        if not (self.stores and is_answer):
            return  # a page, or what else was no answer of the endpoint
        if context.compacting is not None:
            self._reply = self._reply._replace(marks=marks_of(items, context.counter.dialect))
        after = partial(session_after, self._attempt, self._reply)
        covered, marks = self.decision.view.covered_count, self._reply.marks
        update = SessionUpdate(context.kept, after, covered, marks=marks)
        if append is None:
            await self._parts.decider.keeper.settle(context.recognised, update)
        else:
            await self._store_append(update, append, items)

    async def _store_append(self, update: SessionUpdate, append: Append, items: Items) -> None:
        """Stores an append with its reply; raises `HistoryUnavailable` if they are not stored."""
        why = "its reply has no message that can be stored, or is too large"
        if items:
            tip, block = append.block(items)
            update = update._replace(tip=tip, tip_before=append.base, blocks={tip.block: block})
            why = await self._parts.decider.keeper.settle(self._attempt.context.recognised, update)
            if self.request.until_answered is not None:
                # Before the last byte: the client may append to another replica at once.
                await self.request.until_answered.aclose()
            if not why:
                return
            self._attempt = self._attempt._replace(decision=degraded(self.decision, why))
        error = HistoryUnavailable(f"This turn was not stored ({why}); the history ends where it ended before.")
        error.headers = self.headers(accepted=False)
        raise error

    async def note_compaction(self, answer: Items) -> None:
        """Keeps by what the answer to a compaction is known, if no turn of the conversation has asked for it."""
        context, own_tokens = self._attempt.context, self.decision.own_tokens
        if context.branch is None or self.request.controls.no_store or context.recognised.failure:
            return
        name, marks = context.branch.name, marks_of(answer, context.counter.dialect)
        await self._parts.decider.keeper.amend(
            context.recognised,
            lambda session: session.with_compaction(name, marks).with_totals(own_tokens=own_tokens),
            creates=False,
            index=marks,
        )

    # -- follow up -----------------------------------------------------------------------------------

    def follow_up(self) -> None:
        """Starts the work that has become due; raises nothing."""
        if not self.stores or self._attempt.context.is_idle:
            return
        try:
            self._parts.decider.preparer.follow_up(self.decision)
        except Exception:  # noqa: BLE001
            # The reply has been sent: a defect costs only what would have been ready for the next one.
            _log.exception("background work was not started")


async def _replaced(refused: UpstreamReply, sending: Awaitable[T]) -> T | None:
    """The answer to something else, after which the refused reply is closed.

    None if the upstream is unavailable: then the client gets the refused reply.
    """
    try:
        answer = await sending
    except UpstreamUnavailable:
        return None
    except BaseException:
        await refused.close()
        raise
    await refused.close()
    return answer
