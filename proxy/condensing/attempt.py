"""An attempt: the body that is sent for a request, and whether its session is stored. An attempt never changes.

If the upstream refuses one, another may follow (`refusals.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from proxy.condensing.memory_tool import Searcher
from proxy.condensing.turn import Decision, RequestContext, undecided
from proxy.endpoints.replies import Usage
from proxy.errors import HistoryUnavailable
from proxy.knowledge.anchor import Anchor
from proxy.knowledge.profiles import Restriction
from proxy.reasons import NOTHING_CONDENSED, Action, Reason
from proxy.request.wire import Body
from proxy.searching import HiddenRounds, ToolState, offer_members
from proxy.sessions import keeping
from proxy.sessions.keeping import Keeper
from proxy.sessions.requests import RequestRecord, amounts, in_millionths
from proxy.sessions.session import MAX_MODEL_NAME, Branch, Session, size_after
from strategies.core.view import View


class Step(Enum):
    """What a refusal may lead to, besides another form, which may be named more than once (`refusals.py`)."""

    OTHER_REASONING = auto()
    WITHOUT_HEAD = auto()  # a view without an opaque head, which the server cannot read any more
    REPEATED = auto()  # the request is sent a second time as it is
    SMALLER = auto()  # a view for the length that was refused; another refusal for the length is final
    FEWER_PICTURES = auto()
    WITHOUT_TOOL = auto()
    ORIGINAL = auto()  # the request as it came, because nothing explained why the rewritten one was refused


class Attempt(NamedTuple):
    """What is sent, and what the refusals before it have led to."""

    decision: Decision
    rounds: HiddenRounds | None = None  # the hidden rounds that may follow; None if the model is offered no memory tool
    stores: bool = False  # whether the session is stored once it is accepted
    tried: frozenset[Step] = frozenset()  # the steps that the refusals before it have led to; each is taken once
    restrictions: tuple[Restriction, ...] = ()
    """What the refusals before it have named, and what it proves once it is accepted."""

    @property
    def context(self) -> RequestContext:
        return self.decision.context


@dataclass(frozen=True, slots=True)
class Attempts:
    """Makes the attempts to send decisions; one per app."""

    keeper: Keeper
    searcher: Searcher
    usage_probe: bool  # whether a body that is changed anyway asks for the usage of its stream, if the client did not

    def of(self, decision: Decision) -> Attempt:
        """The attempt to send a decision, whose body is written here; raises `HistoryUnavailable`."""
        decision = decision.in_context(decision.context.offering(decision.offer))
        decision = written(decision, probe=self.usage_probe)
        if not decision.context.offer.is_made:
            return self._of_written(decision)
        write = partial(spliced, decision.view, decision.context, probe=decision.probed)
        return self._of_written(decision)._replace(rounds=self.searcher.rounds(decision, write))

    def original_of(self, refused: Decision) -> Attempt | None:
        """The attempt to send a request as it came; None if just that was refused, or if it does not fit."""
        if not refused.context.fits_whole:
            return None
        original = undecided(refused.context.for_original())
        decision = original._replace(reason=Reason.REWRITE_REFUSED, own_tokens=refused.own_tokens)
        decision = written(decision, probe=False)
        if decision.body == refused.body:
            return None
        return self._of_written(decision)._replace(tried=frozenset({Step.ORIGINAL}))

    def _of_written(self, decision: Decision) -> Attempt:
        """The attempt to send a decision whose body is written; the decision gets the id of its session."""
        context, append = decision.context, decision.context.append
        failure = context.recognised.failure
        if append is not None and failure and not context.request.controls.dry_run:
            raise HistoryUnavailable(f"This turn could not be stored now ({failure}).")
        if context.offer.reason and decision.action is not Action.DEGRADED and decision.reason in NOTHING_CONDENSED:
            decision = decision._replace(reason=context.offer.reason)
        if not (context.kept.chain and context.may_store) or _is_too_small(decision):
            return Attempt(decision)
        decision = decision._replace(session=context.recognised.stored_id)
        if self.keeper.refused:
            decision = degraded(decision, self.keeper.refused)
        return Attempt(decision, stores=True)


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


def record_of(attempt: Attempt, reply: ReplyFacts) -> RequestRecord:
    """What is recorded of a request; its branch is the one that it was decided on."""
    decision, context, usage = attempt.decision, attempt.context, reply.usage
    request, branch, window = context.request, context.branch, context.policy.window.tokens
    reread = 0
    if decision.action is Action.CONDENSED and usage and branch and branch.anchor and context.spent("cached_tokens"):
        # Without a change, all of the last view would have come from the upstream's cache.
        reread = max(min(branch.anchor.counted, usage.prompt) - usage.cached, 0)
    counted = usage or Usage(decision.expected_tokens)
    prices = context.policy.prices
    cost = prices.of_call(prompt=counted.prompt, cached=counted.cached, reply=counted.completion) if prices else 0.0
    return RequestRecord(
        at=request.received_at,
        branch=decision.branch,
        action=decision.action,
        trigger=decision.trigger,
        condensation=decision.applied.id if decision.applied else "",
        before=decision.tokens_before,
        after=decision.forwarded_tokens,
        precision=decision.precision,
        status=reply.status,
        milliseconds=reply.milliseconds,
        model=request.model[:MAX_MODEL_NAME],
        window=window,
        prompt=usage.prompt if usage else 0,
        cached=usage.cached if usage else 0,
        reply=usage.completion if usage else 0,
        own=decision.all_own_tokens,
        reread=reread,
        fits=context.fits_whole and Step.SMALLER not in attempt.tried,
        cost=in_millionths(cost) if reply.status < HTTPStatus.BAD_REQUEST else 0,
    )


def session_after(
    attempt: Attempt, reply: ReplyFacts, session: Session, old: Branch | None, now: float
) -> tuple[Session, RequestRecord]:
    """The session once an attempt was answered, and the request's record.

    `old` is the branch that it continues, None if it opens one.
    """
    decision, context, rounds = attempt.decision, attempt.context, attempt.rounds
    history, applied = context.kept, _last_applied(decision)
    branch = session.branch_after(old, history, now, has_tools=context.has_tools)._replace(
        applied=applied,
        reply="" if context.compacting else reply.ending,
        bound=context.bound_under(decision.applied),
    )
    if reply.anchor is not None and context.compacting is None:
        branch = branch._replace(anchor=reply.anchor)
    record = record_of(attempt, reply)._replace(branch=branch.name)
    more = {"own_tokens": decision.own_tokens, **amounts(record, context.policy.prices)}
    if rounds is not None and rounds.spent_tokens:
        more["memory_tokens"] = rounds.spent_tokens
    advice = decision.economy
    after = session.with_branch(old, branch).with_totals(**more)
    if context.compacting is not None:
        after = after.with_compaction(branch.name, reply.marks)
    # What an opaque head carries gets its place with the first view that has it.
    for patch in (decision.memory_patch, decision.view.unplaced, rounds.patch if rounds else None):
        after = after.with_patch(patch, history.digests, decision.view.covered_count)
    after = after.with_model(record.model)._replace(
        settings=session.settings if session.is_derived else dict(context.policy.session_settings),
        strategy=context.policy.pipeline.text,
        window=context.policy.window.tokens,
        economy={"mode": decision.policy.economy, **advice._asdict()} if advice is not None else session.economy,
        rewriting=(
            session.rewriting.after_one_more(context.request.upstream.base_url, now)
            if Step.ORIGINAL in attempt.tried
            else session.rewriting
        ),
        size_refused=size_after(
            session.size_refused, context.size_refused, ends=not reply.is_late_refusal and ends_size(decision)
        ),
        pictures_out=context.pictures_out or session.pictures_out,
    )
    return after, record


def ends_size(decision: Decision) -> bool:
    """Whether the size refused that bounds the session ends once this view is accepted, because it is longer."""
    size = decision.context.size_refused
    return size is not None and decision.expected_tokens > size.tokens


def _last_applied(decision: Decision) -> str:
    """The id of the condensation that the branch will have applied last, "" for none.

    A request that is `off`, or under `observe:`, leaves it unchanged.
    """
    if decision.applied is None and not decision.policy.rewrites:
        return decision.context.recognised.last_applied or ""
    return decision.applied.id if decision.applied else ""


def degraded(decision: Decision, failure: str) -> Decision:
    """The decision with the reason why its session is not stored, unless `rewrite-refused` is the reason already."""
    is_refused = decision.reason == Reason.REWRITE_REFUSED
    return decision._replace(action=Action.DEGRADED, reason=decision.reason if is_refused else failure)


def _is_too_small(decision: Decision) -> bool:
    """Whether a conversation is new, derived, and too small to be stored yet."""
    context, found = decision.context, decision.context.recognised
    is_new = found.is_derived and found.session is None and decision.applied is None
    is_taught = context.refuses_reasoning or context.pictures_out or decision.reason == Reason.REWRITE_REFUSED
    if not is_new or is_taught:
        return False
    return keeping.is_small(decision.tokens_before, context.policy.window.tokens)


def _marked(view: View, body: Body) -> list[bytes]:
    """The elements of a view as bytes; if the protocol has prompt-cache markers, the view's head may end with one."""
    messages = view.messages
    elements = [message.data for message in messages]
    end = view.end_of_head
    place = next((i for i, message in enumerate(messages) if message is end), None)
    if place is not None and (marked := body.endpoint.with_marker(body.values, elements, place)) is not None:
        elements[place] = marked
    return elements


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
    if view.is_changed or context.is_rewritten or hidden:
        elements = [*_marked(view, request.body), *map(str.encode, hidden)]
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


def written(decision: Decision, *, probe: bool) -> Decision:
    """The decision with the bytes to forward.

    With `probe` the body of a stream asks for its usage even if the client did not, provided that the body is changed
    anyway.
    """
    context, body = decision.context, decision.context.request.body
    probed = (
        probe
        and body.values.get("stream") is True
        and (decision.view.is_changed or context.is_rewritten)
        and context.policy.profile.stream_options
        and bool(body.endpoint.usage_probe(body.values))
    )
    return decision._replace(probed=probed, body=spliced(decision.view, context, probe=probed))
