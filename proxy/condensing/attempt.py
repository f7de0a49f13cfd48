"""A turn: one request on its way, what is sent for it, what its reply has shown, and the one record of it.

An `Attempt` is one request as it is sent; it never changes. If the upstream refuses it, another may follow
(`refusals.py`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from proxy.bodies.measure import Measured, Precision
from proxy.bodies.wire import Body, ClientRequest
from proxy.condensing.account import Timing
from proxy.condensing.policy import Policy
from proxy.condensing.reasoning import bound_under, fold_view
from proxy.condensing.turn import Decision, RequestContext, context_of
from proxy.conversations import keeping
from proxy.conversations.keeping import Keeper
from proxy.conversations.recognition import Identity, Recognised
from proxy.conversations.requests import RequestRecord, amounts, in_millionths
from proxy.conversations.searching import NO_OFFER, HiddenRounds, ToolState, offer_members
from proxy.conversations.session import MAX_MODEL_NAME, OWN_HEADER, printable_id
from proxy.errors import HistoryUnavailable
from proxy.protocols.replies import Usage
from proxy.reasons import NOTHING_CONDENSED, Action, Reason
from proxy.servers import LessonScope
from proxy.servers.counting import NO_PROMPT, Anchor
from proxy.servers.known import Server
from proxy.servers.refusals import NO_REFUSAL, Refusal
from proxy.servers.windows import UNKNOWN
from proxy.settings.profile import Restriction
from proxy.store.access import Outage, Patience
from proxy.store.base import StoreKey
from proxy.tokens.media import media_prices
from strategies.core.budget import UNLIMITED
from strategies.core.reasoning import Bound
from strategies.core.transcript import Transcript
from strategies.core.view import View

if TYPE_CHECKING:
    from proxy.condensing.memory_tool import Searcher


class Step(Enum):
    """What a refusal may lead to, besides another form, which may be named more than once (`refusals.py`)."""

    OTHER_REASONING = auto()
    WITHOUT_HEAD = auto()  # a view without an opaque head, which the server cannot read any more
    REPEATED = auto()  # the request is sent a second time as it is
    SMALLER = auto()  # a view for the length that was refused; another refusal for the length is final
    LIGHTER = auto()  # a view without pictures, documents or the middle of strings
    WITHOUT_TOOL = auto()
    ORIGINAL = auto()  # the request as it came, because nothing explained why the rewritten one was refused


class Attempt(NamedTuple):
    """What is sent, and what the refusals before it have led to."""

    decision: Decision
    rounds: HiddenRounds | None = None  # the hidden rounds that may follow; None if the model is offered no memory tool
    stores: bool = False  # whether the session is stored once it is accepted
    captures: bool = False  # whether what the model says in the reply is stored
    bound: Bound = Bound()  # what the branch's reasoning is bound to then
    last_applied: str = ""
    """The id of the condensation that the branch will have applied last; `off` and `observe:` leave it unchanged."""
    tried: frozenset[Step] = frozenset()  # the steps that the refusals before it have led to; each is taken once
    restrictions: tuple[Restriction, ...] = ()
    """What the refusals before it have named, and what it proves once it is accepted."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Makes the attempts to send decisions; one per app."""

    keeper: Keeper
    outage: Outage  # whether the store fails now
    searcher: Searcher
    probes: Container[LessonScope]
    """The models that a body which is changed anyway asks for the usage of its stream, if the client did not."""

    def of(self, decision: Decision) -> Attempt:
        """The attempt to send a decision, whose body is written here; raises `HistoryUnavailable`."""
        if decision.offer is not decision.context.offer:
            decision = decision.in_context(decision.context.offering(decision.offer))
        decision = written(decision, self.probes)
        if not decision.context.offer.is_made:
            return self._of_written(decision)
        write = partial(spliced, decision.view, decision.context, probe=decision.probed)
        return self._of_written(decision)._replace(rounds=self.searcher.rounds(decision, write))

    def original_of(self, refused: Decision) -> Attempt | None:
        """The attempt to send a request as it came; None if just that was refused, or if it does not fit."""
        if not fits_whole(refused.context):
            return None
        original = undecided(for_original(refused.context)._replace(must_store=True))
        decision = original._replace(reason=Reason.REWRITE_REFUSED, own_tokens=refused.own_tokens)
        decision = written(decision)
        if decision.body == refused.body:
            return None
        return self._of_written(decision)._replace(tried=frozenset({Step.ORIGINAL}))

    def _of_written(self, decision: Decision) -> Attempt:
        """The attempt to send a decision whose body is written; the decision gets the id of its session."""
        context, found, failure = decision.context, decision.context.recognised, decision.context.recognised.failure
        if context.append is not None and failure and not context.request.controls.dry_run:
            raise HistoryUnavailable(f"This turn could not be stored now ({failure}).")
        if context.offer.reason and decision.action is not Action.DEGRADED and decision.reason in NOTHING_CONDENSED:
            decision = decision._replace(reason=context.offer.reason)
        is_new = found.identity.id is None and found.session is None and decision.applied is None
        if not (context.history.kept.chain and context.may_store) or (is_new and _is_too_small(context)):
            return Attempt(decision, captures=bool(context.heads[1]))
        if found.identity.id is None:
            decision = decision._replace(session=found.key.name)
        if self.outage.refuses:
            decision = degraded(decision, self.outage.refuses)
        captures = context.aside is not None if context.append is None else bool(context.heads[1])
        last_applied = decision.applied.id if decision.applied else ""
        if decision.applied is None and not context.policy.rewrites:
            last_applied = found.last_applied or ""
        bound = bound_under(context, decision.applied)
        return Attempt(decision, stores=True, captures=captures, bound=bound, last_applied=last_applied)


class ReplyFacts(NamedTuple):
    """What a reply has shown."""

    status: int = 0  # of the last reply; 0 before the first
    milliseconds: int = 0  # since the request came
    usage: Usage | None = None
    spent: int = 0  # tokens of the prompts and replies of all rounds, as the upstream has counted them
    anchor: Anchor | None = None  # what calibration keeps of the usage for the branch's next request
    ending: str = ""
    is_late_refusal: bool = False  # whether it ended in a refusal for length
    marks: tuple[str, ...] = ()  # those of the answer to a compaction


NO_REPLY = ReplyFacts()


@dataclass(slots=True, eq=False)
class Turn:
    """One request on its way. Its phases put in what they find: all values are frozen, and none looks into another."""

    asked: ClientRequest
    timing: Timing
    sent: Attempt  # what is sent, or was sent last
    refusal: Refusal = NO_REFUSAL  # what the answer to that refused, as far as one was looked for
    reply: ReplyFacts = NO_REPLY
    record: RequestRecord | None = None
    """What stays of the request, made once: the journal, the log, the metrics, the sums and the spans read it."""
    amounts: Mapping[str, int] = field(
        default_factory=dict
    )  # what it adds to the totals of its session and to the sums

    def put_down(self) -> RequestRecord:
        """Makes the record, once there is nothing more to find out."""
        self.record = record_of(self)
        context = self.sent.decision.context
        written = self.reply.usage.written if self.reply.usage else 0
        self.amounts = amounts(self.record, context.policy.prices, context.sized.calibrated.scale.slope, written)
        return self.record


def record_of(turn: Turn) -> RequestRecord:
    """What is recorded of a request; its branch is the one that it was decided on."""
    decision, reply, request = turn.sent.decision, turn.reply, turn.asked
    context, usage, branch = decision.context, reply.usage, decision.context.branch
    reread, has_cache = 0, decision.action is Action.CONDENSED and context.recognised.spent("cached_tokens")
    if has_cache and usage and branch and branch.anchor:
        # Without a change, all of the last view would have come from the upstream's cache, and only what is new not.
        new = sum([each.tokens for each in context.sized.prompt.since(branch.anchor.length)])
        new_counted = round(context.sized.calibrated.scale.slope * new)
        reread = max(min(branch.anchor.counted, usage.prompt - new_counted) - usage.cached, 0)
    counted, prices = usage or Usage(decision.expected_tokens), context.policy.prices
    tokens, cached, reply_tokens, written = counted.prompt, counted.cached, counted.completion, counted.written
    cost = prices.of_call(prompt=tokens, cached=cached, reply=reply_tokens, written=written) if prices else 0.0
    return RequestRecord(
        at=request.received_at,
        branch=context.branch_name,
        action=decision.action,
        trigger=decision.trigger,
        condensation=decision.applied.id if decision.applied else "",
        before=context.history.sent.tokens,
        after=decision.tokens_after,
        precision=context.history.measured.precision,
        status=reply.status,
        milliseconds=reply.milliseconds,
        model=request.model[:MAX_MODEL_NAME],
        window=context.policy.window.tokens,
        prompt=usage.prompt if usage else 0,
        cached=usage.cached if usage else 0,
        reply=usage.completion if usage else 0,
        own=decision.all_own_tokens,
        reread=reread,
        fits=Step.SMALLER not in turn.sent.tried and fits_whole(context),
        first_byte=int(turn.timing.first_byte) or reply.milliseconds,  # it is put down before that, if it came at once
        cost=in_millionths(cost) if cost and reply.status < HTTPStatus.BAD_REQUEST else 0,
    )


def fits_whole(context: RequestContext) -> bool:
    """Whether the server takes a request as the client sent it, with the reply that it asks for, as far as is known.

    A window that was set lower than the server's, `marks.most` and a price step are choices: they refuse nothing.
    """
    policy, reply = context.policy, context.request.body.envelope.reply_limit or 0
    prompt, window = context.sized.calibrated.scale.upstream(context.history.sent.tokens), policy.window
    # A server is not asked where a window is set: what is known of it besides is the table, and what it has refused.
    if (context.server.listed.tokens or 0) > (window.tokens or UNLIMITED) and window.is_set:
        window = context.server.listed
    most = min(policy.size_refused or UNLIMITED, window.max_input or UNLIMITED)
    return prompt <= most and prompt + reply <= (window.tokens or UNLIMITED)


def degraded(decision: Decision, failure: str) -> Decision:
    """The decision with the reason why its session is not stored, unless `rewrite-refused` is the reason already."""
    is_refused = decision.reason == Reason.REWRITE_REFUSED
    return decision._replace(action=Action.DEGRADED, reason=decision.reason if is_refused else failure)


def _is_too_small(context: RequestContext) -> bool:
    """Whether a conversation that is new and derived is too small to be stored yet."""
    policy = context.policy
    window = policy.budget.window if policy.budget and policy.window.tokens is not None else None
    return not context.must_store and keeping.is_small(context.history.sent.tokens, window)


def marked(view: View, body: Body) -> list[bytes]:
    """The elements of a view as bytes; if the protocol has prompt-cache markers, the view's head may end with one."""
    messages = view.messages
    elements = [message.data for message in messages]
    end = view.end_of_head
    place = next((i for i, message in enumerate(messages) if message is end), None)
    if place is not None and (marked := body.endpoint.with_marker(body.values, elements, place)) is not None:
        elements[place] = marked
    return elements


def for_original(context: RequestContext) -> RequestContext:
    """The context for sending the request as the client sent it."""
    sent = context.history.sent
    return context._replace(
        policy=context.policy.off(),
        history=context.history.viewing(sent),
        sized=context.sized._replace(overhead=sent.overhead, prompt=NO_PROMPT),
        offer=NO_OFFER,
    )


def is_rewritten(view: View, context: RequestContext) -> bool:
    """Whether the list that is sent differs from what the client sent, even if nothing is condensed."""
    history = context.history
    is_other = history.shown is not history.measured.transcript or history.measured is not history.sent
    return is_other or context.append is not None or view.is_changed


def spliced(
    view: View,
    context: RequestContext,
    hidden: Sequence[str] = (),
    tool_state: ToolState = ToolState.OFFERED,
    *,
    probe: bool = False,
) -> bytes:
    """The bytes to forward: the view, followed by `hidden` messages as JSON text.

    With `probe` the body asks for the usage of the stream.
    """
    request = context.request
    messages = None
    if hidden or is_rewritten(view, context):
        elements = [*marked(view, request.body), *map(str.encode, hidden)]
        messages = b"[" + b",".join(elements) + b"]"
    managed, policy = request.body.endpoint.management_member, context.policy
    return request.body.spliced(
        messages=messages,
        without=[managed] if managed and policy.rewrites and not policy.profile.context_management else (),
        model=request.model if request.has_suffix else None,
        members={
            **(offer_members(request.body, context.offer, tool_state) if context.offer.is_made else {}),
            **(request.body.endpoint.usage_probe(request.body.values) if probe else {}),
        },
    )


def written(decision: Decision, probes: Container[LessonScope] = ()) -> Decision:
    """The decision with the bytes to forward, and what the upstream is expected to count for them.

    If `probes` has its model, the body of a stream asks for its usage even if the client did not, provided that the
    body is changed anyway.
    """
    context, view = decision.context, decision.view
    body, policy = context.request.body, context.policy
    probed = (
        body.values.get("stream") is True
        and context.server.scope in probes
        and is_rewritten(view, context)
        and policy.profile.stream_options
        and bool(body.endpoint.usage_probe(body.values))
    )
    return expecting(decision, probed=probed, body=spliced(view, context, probe=probed))


def expecting(decision: Decision, **more: Any) -> Decision:
    """The decision with `more`, and what follows from its view, such as what the upstream is expected to count."""
    policy, view, known = decision.context.policy, decision.view, decision.context.sized.calibrated
    tokens, applied = view.tokens, decision.applied
    if decision.tokens_after != tokens:
        expected = known.scale.upstream(decision.tokens_after)
    else:
        expected = known.expected(view, applied.id if applied else "")
    budget = policy.budget if policy.window.tokens is not None else None
    return decision._replace(
        expected_tokens=expected,
        headroom=None if budget is None else budget.headroom(expected),
        forwarded_tokens=tokens if policy.pipeline.observe else decision.tokens_after,
        all_own_tokens=decision.own_tokens + (applied.own_tokens if decision.was_prepared and applied else 0),
        **more,
    )


def undecided(context: RequestContext, reason: str = "") -> Decision:
    """The decision to forward the transcript unchanged, for a `reason`; after a store failure, with that of this."""
    recognised, measured, view = context.recognised, context.history.measured, fold_view(context, None)
    is_other = view.drops_reasoning or context.history.shown is not measured.transcript
    tokens = view.tokens if is_other else measured.tokens
    action = Action.DEGRADED if recognised.failure else Action.PASSED
    shown, failure = recognised.shown_id, recognised.failure
    return Decision(context, view, tokens, shown, action=action, reason=failure or reason, forwarded_tokens=tokens)


def idle_decision(context: RequestContext) -> Decision:
    """The decision on a request for which nothing is due."""
    return undecided(context, recognition_reason(context) or context.policy.below)


def recognition_reason(context: RequestContext) -> str:
    """The reason that tells what was recognised, if that is worth telling; else ""."""
    if context.aside is not None:
        return context.aside.reason
    if context.history.measured is not context.history.sent:
        return Reason.ALIGNED
    return Reason.NEW_BRANCH if context.recognised.session is not None and context.branch is None else ""


def last_resort(request: ClientRequest) -> Decision:
    """The decision to forward a request as it came; nothing of it is stored.

    Raises `HistoryUnavailable` in append mode, because the client has sent only the end of its conversation.
    """
    if request.controls.append:
        raise HistoryUnavailable("The stored history cannot be supplied now (internal-error).")
    endpoint, session = request.body.endpoint, request.controls.session
    identity = Identity(OWN_HEADER if session else UNKNOWN, session, dialect=endpoint.dialect.name)
    key, shown = StoreKey(request.tenant, ""), printable_id(session) if session else UNKNOWN
    recognised = Recognised(identity, key, shown, Patience(0.0), failure=Reason.INTERNAL_ERROR)
    nothing = Measured.of(Transcript(()), 0, Precision.ESTIMATE)
    server = Server(request.lesson_scope, endpoint.counter(UNKNOWN, len, media_prices("")))
    context = context_of(request, recognised, Policy(), server, nothing, nothing)
    return undecided(context)._replace(body=request.body.spliced(model=request.model if request.has_suffix else None))
