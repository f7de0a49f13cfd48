"""An attempt: the body that is sent for a request, and what its success stores. An attempt never changes.

If the upstream refuses one, another may follow (`exchange.py` lists them). After a refusal for length the view is
condensed for the window that it states, and smaller than the refused one (`retry_budget`), in what is left of the time
that a request waits for models.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from proxy.condensing.turn import Decision, RequestContext, undecided
from proxy.endpoints.replies import Usage
from proxy.errors import HistoryUnavailable, UpstreamUnavailable
from proxy.knowledge.anchor import Anchor
from proxy.knowledge.profiles import REFUSING, Restriction
from proxy.overflow import Refusal, read_body
from proxy.overflow.wording import MIN_WINDOW
from proxy.quoting import label
from proxy.reasons import NOTHING_CONDENSED, Action, Reason
from proxy.reply.opening import OpenedReply
from proxy.request.wire import Body
from proxy.searching import HiddenRounds, ToolState, offer_members
from proxy.sessions import keeping
from proxy.sessions.keeping import Keeper
from proxy.sessions.session import PicturesOut
from proxy.sessions.turn import SessionUpdate
from proxy.upstream import UpstreamReply
from strategies.core.budget import Budget, Marks
from strategies.core.messages import Message, dump
from strategies.core.reasoning import BOUND, REQUIRED, rule_named_in
from strategies.core.view import View
from strategies.dialects.pictures import has_pictures, pictures

MAX_RATIO = 4.0
"""Largest believable ratio of upstream tokens to our own; a larger one describes another prompt."""
SMALLER = 0.9
"""The next view is at most this share of the refused one."""
UNKNOWN_SHARE = 0.70
"""The same share if the refusal states no window."""
GOAL_SHARE = 0.8
"""The target is at most this share of the maximum that may be sent."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Attempt(NamedTuple):
    """What is sent, and what the refusals before it have led to."""

    decision: Decision
    rounds: HiddenRounds | None = None
    """The hidden rounds that may follow; None if the model is offered no memory tool."""
    stores: bool = False
    """Whether the session is stored once it is accepted."""
    is_last: bool = False
    """Whether a refusal for the length of this attempt is final."""
    is_repeated: bool = False
    """Whether it is sent a second time as it is."""
    has_fewer_pictures: bool = False
    """Whether a refusal has already had pictures left out."""
    has_other_reasoning: bool = False
    """Whether a refusal has already had the reasoning put in or taken out."""
    restrictions: tuple[Restriction, ...] = ()
    """What the refusals before it have named, and what it proves once it is accepted."""

    @property
    def context(self) -> RequestContext:
        return self.decision.context


def attempt_of(decision: Decision, keeper: Keeper, rounds: HiddenRounds | None) -> Attempt:
    """The attempt to send a decision whose body is written, with the hidden `rounds` that may follow.

    The decision gets the name of its branch. Raises `HistoryUnavailable`.
    """
    context, append = decision.context, decision.context.supply.append
    failure = context.recognised.failure
    if append is not None and failure and not context.request.controls.dry_run:
        raise HistoryUnavailable(f"This turn could not be stored now ({failure}).")
    if context.offer.reason and decision.action is not Action.DEGRADED and decision.reason in NOTHING_CONDENSED:
        decision = decision._replace(reason=context.offer.reason)
    if not context.history.chain:
        return Attempt(decision, rounds)
    session, branch = keeper.id_and_branch(context.recognised, has_tools=context.has_tools)
    decision = decision._replace(branch=branch)
    if not context.may_store or _is_too_small(decision):
        return Attempt(decision, rounds)
    decision = decision._replace(session=session, append_head=append.head if append else "")
    if keeper.refused:
        decision = degraded(decision, keeper.refused)
    return Attempt(decision, rounds, stores=True)


def original_of(refused: Decision, keeper: Keeper) -> Attempt | None:
    """The attempt to send a request as it came; None if just that was refused, or if it does not fit."""
    if not refused.context.fits_whole:
        return None
    original = undecided(refused.context.for_original())
    decision = original._replace(reason=Reason.REWRITE_REFUSED, own_tokens=refused.own_tokens)
    decision = written(decision, probe=False)
    return None if decision.body == refused.body else attempt_of(decision, keeper, None)


class ReplyFacts(NamedTuple):
    """What a reply has shown."""

    usage: Usage | None = None
    anchor: Anchor | None = None
    """What calibration keeps of the usage for the branch's next request."""
    ending: str = ""
    is_late_refusal: bool = False
    """Whether it ended in a refusal for length."""


def update_after(attempt: Attempt, reply: ReplyFacts) -> SessionUpdate:
    """The update of the session once an attempt was answered."""
    decision, context, rounds = attempt.decision, attempt.context, attempt.rounds
    advice = decision.economy
    return SessionUpdate(
        context.history,
        dict(context.policy.session_settings),
        context.policy.pipeline.text,
        context.policy.window.tokens,
        decision.tokens_before,
        decision.forwarded_tokens,
        decision.own_tokens,
        _last_applied(decision),
        block=decision.memory_block,
        usage=reply.usage,
        anchor=reply.anchor,
        reply=reply.ending,
        patch=rounds.patch if rounds else None,
        memory_patch=decision.memory_patch,
        memory_tokens=rounds.spent_tokens if rounds else 0,
        has_tools=context.has_tools,
        covered=decision.view.covered_count,
        size_refused=context.size_refused,
        ends_size=not reply.is_late_refusal and ends_size(decision),
        refuses_rewriting=decision.reason == Reason.REWRITE_REFUSED and not context.is_spared,
        pictures_out=context.pictures_out,
        economy={"mode": decision.policy.economy, **advice._asdict()} if advice is not None else {},
        bound=context.bound_under(decision.applied),
    )


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
    is_new = found.is_derived and found.session is None and decision.applied is None and not decision.memory_block.raw
    is_taught = context.refuses_reasoning or context.pictures_out or decision.reason == Reason.REWRITE_REFUSED
    if not is_new or context.keeps_reply or is_taught:
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
    named = context.supply.named_reply
    is_after_reply = messages is not None and named is not None and bool(named.block)
    return request.body.spliced(
        messages=messages,
        model=request.model if request.has_suffix else None,
        members={
            **({request.body.endpoint.previous_reply: "null"} if is_after_reply else {}),
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


# -- what follows a refusal ---------------------------------------------------------------------------


def may_be_refused(attempt: Attempt) -> bool:
    """Whether an attempt may be refused for its length, and another one may then follow.

    That is so from half of what is known to fit; if nothing is known, from the least window.
    """
    decision, budget = attempt.decision, attempt.decision.policy.budget
    if not decision.policy.rewrites or attempt.is_last:
        return False
    return decision.expected_tokens >= (budget.usable // 2 if budget is not None else MIN_WINDOW)


class RefusedRequest(NamedTuple):
    """The request that was refused."""

    tokens: int
    """Tokens of the view by our own count."""
    expected_tokens: int
    """Tokens that the upstream was expected to count for it."""
    reply_tokens: int
    """Tokens that it asked for as a reply; 0 if neither the request nor the refusal states them."""


def retry_budget(budget: Budget, refusal: Refusal, refused: RefusedRequest) -> Budget:
    """The budget by which a refused view is condensed, in tokens of our own count; `budget` is in the upstream's.

    If the refusal states no window, the view is brought to a share of the refused one, whatever the window is.
    """
    usable = max(budget.usable, 1)
    if refusal.window is None:
        share = UNKNOWN_SHARE * refused.tokens / usable
        return replace(budget, marks=Marks(share, share, share, budget.marks.step))
    ratio = _ratio(refusal, refused)
    room = budget.window - refused.reply_tokens if refused.reply_tokens < budget.window else usable
    most = min(budget.trigger / ratio, min(usable, room) / ratio, SMALLER * refused.tokens)
    goal = min(budget.target / ratio, GOAL_SHARE * most)
    return replace(budget, marks=Marks(most / usable, most / usable, goal / usable, budget.marks.step))


def _ratio(refusal: Refusal, refused: RefusedRequest) -> float:
    """The ratio of upstream tokens to our own, at least 1.

    A refusal without a count still shows that the request did not fit.
    """
    counted = refusal.prompt_tokens or max(refused.expected_tokens, (refusal.window or 0) - refused.reply_tokens)
    return min(max(counted / max(refused.tokens, 1), 1.0), MAX_RATIO)


async def replace_refused(refused: UpstreamReply, sending: Awaitable[T | None]) -> T | None:
    """The result of sending something else, after which the refused reply is closed.

    None if nothing else was sent, or if the upstream is unavailable: then the client gets the refused reply.
    """
    try:
        reply = await sending
    except UpstreamUnavailable:
        return None
    except BaseException:
        await refused.close()
        raise
    if reply is not None:
        await refused.close()
    return reply


# -- fewer pictures ---------------------------------------------------------------------------------
#
# The oldest pictures leave a view whose request was refused for its bytes, or for its pictures. They are counted from
# the beginning of the chain, and the session remembers how many were left out, so that the next view begins with the
# bytes of this one. A later refusal leaves out more.

_STATUSES = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_BYTES = re.compile(
    r"request_too_large|(?:request|payload|body|entity|content)[^.;]{0,40}(?:too large|exceeds? the max)"
    r"|(?:request|payload|body)[^.;]{0,60}exceed[^.;]{0,40}(?:size|bytes|[mk]i?b\b)"
)
_PICTURES = re.compile(
    r"at most ([1-9]\d{0,3}) images?(?:\(s\))? may be provided"
    r"|too many images and documents: [\d +]{1,20}> ?(\d{1,4})\b|too much media: [\w +]{1,60}> ?(\d{1,4})\b"
    r"|\d images, exceeding the maximum of (\d{1,4})\b|image count \d{1,4} exceeds limit (\d{1,4})\b"
    r"|can only include (\d{1,4}) image links"
    r"|too many images\b(?:.{0,60}?\b(?:max(?:imum)?(?: is| of)?|up to|at most) (\d{1,4})\b)?"
    r"|many-image requests"
)
"""What vendors and servers are known to say of too many pictures, with the number that they allow."""
_RATE = re.compile(r"per (?:min|minute|hour|day)\b|\b[rt]pm\b|\btokens?\b")
MANY = 20
"""Pictures from which a vendor's stricter rule about their size holds ("many-image requests")."""
SHARE_KEPT = 0.5
"""The share of the refused bytes, or pictures, that the next request has at most."""


def context_without(attempt: Attempt, refused: OpenedReply) -> RequestContext | None:
    """The context that leaves out enough pictures; None if the error is about something else, or none can leave."""
    context, decision = attempt.context, attempt.decision
    status, error = refused.reply.status, refused.error
    allowed = pictures_allowed(status, error)
    is_about_pictures = allowed is not None or refuses_bytes(status, error)
    if not (is_about_pictures and decision.policy.rewrites) or attempt.has_fewer_pictures:
        return None
    chain, known = context.history.chain, context.pictures_out.number if context.pictures_out else 0
    shown = {id(message) for message in decision.view.messages}
    written = zip(chain, context.shown.chain, strict=True)
    sizes = [(at, size if id(sent) in shown else 0) for at, (own, sent) in enumerate(written) for size in _sizes(own)]
    in_view = sum(size > 0 for _, size in sizes[known:])
    if allowed is not None:
        leaving, saved = in_view - (allowed or int(SHARE_KEPT * in_view)), 0.0
    else:
        leaving, saved = 0, (1 - SHARE_KEPT) * len(decision.body)
    number = known
    # The newest picture always stays.
    while number < len(sizes) - 1 and (leaving > 0 or saved > 0):
        size = sizes[number][1]
        number, leaving, saved = number + 1, leaving - (size > 0), saved - size
    if number == known:
        return None
    at = sizes[number - 1][0]
    out = PicturesOut(number, at + 1, context.history.digests[at].hex())
    return context.leaving_out(out)


def _sizes(message: Message) -> list[int]:
    """The bytes of each picture of a message, in order."""
    return [len(dump(picture)) for picture in pictures(message.body)] if has_pictures(message.data) else []


def refuses_bytes(status: int, body: bytes) -> bool:
    """Whether an error is about the bytes of a request."""
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not body.strip():
        return True
    return status in _STATUSES and any(_BYTES.search(said) for said in _said(body))


def pictures_allowed(status: int, body: bytes) -> int | None:
    """How many pictures an error allows, 0 if it states no number; None if it is not about their number or size."""
    found = map(_PICTURES.search, _said(body)) if status in _STATUSES else ()
    match = next(filter(None, found), None)
    if match is None:
        return None
    return MANY if match[0].startswith("many-image") else int(next(filter(None, match.groups()), 0))


def _said(body: bytes) -> list[str]:
    content = read_body(body)
    return [said for said in (*content.texts, *content.codes) if not _RATE.search(said)]


# -- other reasoning --------------------------------------------------------------------------------
#
# `strategies/core/reasoning.py` explains the whole. `RequestContext.bound_under` knows which head a view has and what
# its branch remembers of the one before; here is what the upstream says to that.


def rule_of(refused: OpenedReply, attempt: Attempt) -> str | None:
    """The rule for reasoning that a refusal names, if the request has any; in Responses the server just drops it."""
    status, decision = refused.reply.status, attempt.decision
    is_refusal = bool(refused.error) and (status in REFUSING or status < HTTPStatus.BAD_REQUEST)
    if not is_refusal or decision.view.counter.dialect.drops_reasoning:
        return None  # before the body is searched, which is long
    if not (b'"thinking' in decision.body or b'"reasoning' in decision.body or decision.view.transcript.is_signed):
        return None
    return rule_named_in(refused.error.decode("utf-8", "replace"))


def with_other_reasoning(refused: Attempt, rule: str, following: Callable[[Decision], Attempt]) -> Attempt | None:
    """The same view with all its reasoning, or without any that may be bound; in every mode, and once.

    None if the view is so already: then the client's own list is refused.
    """
    decision, context = refused.decision, refused.context
    if refused.has_other_reasoning:
        return None
    named = (Restriction("reasoning", rule),) if rule == REQUIRED or not context.binds_reasoning else ()
    for restriction in named:
        context = context.for_profile(context.policy.profile.under(restriction))
    context = context._replace(refuses_reasoning=rule == BOUND)
    view = decision.view.bound_to(len(decision.view.transcript.chain) if rule == BOUND else None)
    reason = "" if decision.reason == Reason.REASONING_DROPPED else decision.reason
    attempt = following(decision.with_view(view)._replace(context=context, reason=reason).with_loss_told())
    if attempt.decision.body == refused.decision.body:
        return None
    how = "with all of" if rule == REQUIRED else "without"
    _log.info("%s refused a request for its reasoning; it is sent once more %s it", label(context.request.model), how)
    return attempt._replace(has_other_reasoning=True, restrictions=(*attempt.restrictions, *named))
