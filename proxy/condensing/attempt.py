"""An attempt: the body that is sent for a request, and what its success stores. No I/O; an attempt never changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from proxy.condensing.context import RequestContext, undecided
from proxy.condensing.decision import Decision
from proxy.endpoints.replies import Items
from proxy.errors import HistoryUnavailable
from proxy.knowledge.profiles import Scope
from proxy.reasons import NOTHING_CONDENSED, Action, Reason
from proxy.request.wire import Body
from proxy.searching.rounds import HiddenRounds, ToolState, offer_members
from proxy.sessions import keeping
from proxy.sessions.histories import Append
from proxy.sessions.keeping import Keeper
from proxy.sessions.turn import SessionUpdate
from strategies.core.view import View


class Attempt(NamedTuple):
    """What is sent, and what its success will store."""

    decision: Decision
    context: RequestContext | None = None
    """None if the request could not be taken in."""
    rounds: HiddenRounds | None = None
    """The hidden rounds that may follow; None if the model is offered no memory tool."""
    update: SessionUpdate | None = None
    """The update of the session; None if nothing is stored."""
    is_small: bool = False
    """Whether the conversation is too small to be stored for anything but its hidden rounds."""
    is_last: bool = False
    """Whether no smaller view follows, nor the request as it came."""
    untried: RequestContext | None = None
    """For a trial, the request that is decided on if the trial is refused."""

    @property
    def may_be_rewritten(self) -> bool:
        """Whether the view may be written in another form."""
        pipeline = self.decision.policy.pipeline
        return self.context is not None and not (pipeline.is_off or pipeline.observe)


def attempt_of(decision: Decision, context: RequestContext, keeper: Keeper, rounds: HiddenRounds | None) -> Attempt:
    """An attempt to send a decision whose body is written, with the hidden `rounds` that may follow; names its branch.

    Raises `HistoryUnavailable`.
    """
    failure, may_store = context.recognised.failure, context.may_store
    if context.append is not None and failure and not context.request.controls.dry_run:
        raise HistoryUnavailable(f"This turn could not be stored now ({failure}).")
    if context.offer.reason:
        decision = with_offer_reason(decision, context)
    if not context.history.chain:
        return Attempt(decision, context, rounds)
    session, branch = keeper.id_and_branch(context.recognised, context.branch, has_tools=context.has_tools)
    decision = decision._replace(branch=branch)
    is_small = _is_too_small(decision, context)
    if not may_store or (is_small and rounds is None):
        return Attempt(decision, context, rounds)
    update = _update_for(decision, context)
    head = context.append.head if context.append else ""
    decision = decision._replace(session=decision.session if is_small else session, head=head)
    if keeper.refused:
        decision = degraded(decision, keeper.refused)
    return Attempt(decision, context, rounds, update, is_small)


def original_of(refused: Decision, context: RequestContext, keeper: Keeper) -> Attempt | None:
    """The attempt to send a request as it came; None if that is what was refused, or does not fit."""
    context = context.as_it_came()
    decision = undecided(context)._replace(reason=Reason.REWRITE_REFUSED, own_tokens=refused.own_tokens)
    decision = written(decision, context, probe=False)
    if decision.body == refused.body or not _fits(decision, context):
        return None
    return attempt_of(decision, context, keeper, None)


def _fits(decision: Decision, context: RequestContext) -> bool:
    """Whether a view fits the window with the reply that the request asks for; so it does if the window is unknown."""
    budget, reply = decision.policy.budget, context.request.body.envelope.reply_limit or 0
    return budget is None or decision.expected_tokens + reply <= budget.nominal_window


def _update_for(decision: Decision, context: RequestContext) -> SessionUpdate:
    """The update of the session by a decision, before anything is known of the reply."""
    return SessionUpdate(
        context.history,
        dict(context.policy.session_settings),
        context.policy.pipeline.text,
        decision.tokens_before,
        decision.forwarded_tokens,
        decision.own_tokens,
        _last_applied(decision, context),
        block=decision.memory_block,
        memory_patch=decision.memory_patch,
        has_tools=context.has_tools,
        covered=decision.view.covered_count,
        rewriting_refused=_is_refused(decision),
        economy=_economy_of(decision),
        shown=context.shown_under(decision.applied),
    )


def _economy_of(decision: Decision) -> dict[str, Any]:
    advice = decision.economy
    return {"mode": decision.policy.economy, **advice._asdict()} if advice is not None else {}


def _last_applied(decision: Decision, context: RequestContext) -> str:
    """The id of the condensation that the branch applied last, "" for none.

    A request under `observe:`, or one that was `off`, leaves it as it was.
    """
    pipeline = context.policy.pipeline
    if decision.applied is None and (pipeline.is_off or pipeline.observe):
        return context.recognised.last_applied(context.branch) or ""
    return decision.applied.id if decision.applied else ""


def with_appended(update: SessionUpdate, append: Append, reply: Items) -> SessionUpdate:
    """The update of append mode, which stores the request's messages and the reply."""
    tip, block = append.block(reply)
    return update._replace(tip=tip, tip_before=append.base, blocks={tip.block: block})


def degraded(decision: Decision, failure: str) -> Decision:
    """The decision with the reason why its session is not stored; a refused rewriting stays the reason."""
    return decision._replace(action=Action.DEGRADED, reason=decision.reason if _is_refused(decision) else failure)


def _is_refused(decision: Decision) -> bool:
    """Whether the request is sent as it came because the upstream refuses what we make of it."""
    return decision.reason == Reason.REWRITE_REFUSED


def _is_too_small(decision: Decision, context: RequestContext) -> bool:
    """Whether a conversation is new, derived, and too small to be stored yet."""
    found = context.recognised
    is_new = found.is_derived and found.session is None and decision.applied is None and not decision.memory_block.raw
    if not is_new or context.keeps_reply:
        return False
    return not _is_refused(decision) and keeping.is_small(decision.tokens_before, context.policy.window.tokens)


def with_offer_reason(decision: Decision, context: RequestContext) -> Decision:
    """The decision with the reason why no tool is offered, if nothing else is said."""
    says_nothing = decision.action is not Action.DEGRADED and decision.reason in NOTHING_CONDENSED
    return decision._replace(reason=context.offer.reason) if says_nothing else decision


def _probes(decision: Decision, context: RequestContext) -> bool:
    """Whether a body that is changed, or a trial, should ask for a stream's usage that the client did not ask for."""
    body, is_trial = context.request.body, decision.reason == Reason.WINDOW_TRIAL
    if body.values.get("stream") is not True or not (decision.view.is_changed or context.is_rewritten or is_trial):
        return False
    return context.policy.profile.stream_options and bool(body.endpoint.usage_probe(body.values))


def _marked(view: View, body: Body) -> list[bytes]:
    """The elements of a view as bytes; where the protocol has markers, its head may end with one."""
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

    With `probe` they ask for the usage of the stream.
    """
    request = context.request
    messages = None
    if view.is_changed or context.is_rewritten or hidden:
        elements = [*_marked(view, request.body), *map(str.encode, hidden)]
        messages = b"[" + b",".join(elements) + b"]"
    is_supplied = messages is not None and request.goes_on is not None and bool(request.goes_on.name)
    return request.body.spliced(
        messages=messages,
        model=request.model if request.has_suffix else None,
        members={
            **({request.body.endpoint.previous_reply: "null"} if is_supplied else {}),
            **(offer_members(request.body, context.offer, tool_state) if context.offer.is_made else {}),
            **(request.body.endpoint.usage_probe(request.body.values) if probe else {}),
        },
    )


def written(decision: Decision, context: RequestContext, *, probe: bool) -> Decision:
    """The decision with the bytes to forward; with `probe` they may ask for the usage of a stream."""
    probed = probe and _probes(decision, context)
    return decision._replace(probed=probed, body=spliced(decision.view, context, probe=probed))


def trial_of(context: RequestContext, takes_trial: Callable[[Scope], bool]) -> tuple[Decision, RequestContext] | None:
    """The decision to send a request as it came, and its context then; None if it is no trial.

    A trial is longer than the learned window, and fits the one that was known before.
    """
    window, pipeline = context.policy.window, context.policy.pipeline
    if (
        window.learned_by is None
        or window.tokens is None
        or not context.may_store
        or pipeline.is_off
        or pipeline.observe
        or context.policy.strict
    ):
        return None
    whole = context.as_it_came()
    trial = undecided(whole)
    with_reply = trial.expected_tokens + (context.request.body.envelope.reply_limit or 0)
    fits = window.before is None or with_reply <= window.before
    if trial.expected_tokens <= window.tokens or not fits or not takes_trial(context.request.scope):
        return None
    return trial._replace(reason=Reason.WINDOW_TRIAL), whole
