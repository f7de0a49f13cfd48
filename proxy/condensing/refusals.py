"""What follows a refusal: what it teaches, and the attempt that is made next.

    another form     the same view in another form, each time that a refusal names one; learned if it is accepted
    other reasoning  the same view with all its reasoning, or without any, as a refusal demands; once, in every mode
    without a head   a view without an opaque head, if the server says that it cannot read it; the head is taken back
    the same         if the server's cache is full of other requests; once, after a short random wait, and alone
    a smaller view   condensed for the window that a refusal for length states, or to a share of what was refused
                     (`retry_budget`), in what is left of the time that a request waits for models; once
    fewer pictures   the same view without the oldest ones, if its bytes or its pictures are refused; once
    without the tool the same view without the memory tool, if the model takes no tools; learned if that is accepted
    as it came       if nothing explains the refusal, because our rewriting may be the cause; if that helps twice within
                     an hour, the session is spared rewriting for an hour

Nothing has reached the client by then. After a search of the memory tool, the request with the results may be refused:
`following` has what the search loop does then (`proxy/searching.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from time import perf_counter
from typing import NamedTuple

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Attempts, Step, ends_size
from proxy.condensing.knowledge import Knowledge, Pool
from proxy.condensing.policy import Policies, Policy
from proxy.condensing.turn import Decision, RequestContext, fold_view, undecided
from proxy.errors import ProxyError
from proxy.knowledge.learned_windows import SizeRefused
from proxy.knowledge.profiles import REFUSING, Restriction, restriction_in
from proxy.overflow import MIN_WINDOW, Refusal, RefusedPart, read_body
from proxy.quoting import label
from proxy.reasons import Reason
from proxy.reply.opening import OpenedReply
from proxy.searching import NO_OFFER, Following, HiddenRounds, SendBody
from proxy.sessions.session import PicturesOut
from strategies.core.budget import Budget, Marks
from strategies.core.messages import Message, dump
from strategies.core.reasoning import BOUND, REQUIRED, rule_named_in
from strategies.dialects.pictures import has_pictures, pictures

MAX_RATIO = 4.0  # largest believable ratio of upstream tokens to our own; a larger one describes another prompt
SMALLER = 0.95  # the next request is at most this share of the refused one, and of what is said to fit: counts differ
UNKNOWN_SHARE = 0.70  # the same share if the refusal states no window
GOAL_SHARE = 0.8  # the target is at most this share of the maximum that may be sent
UNEXPLAINED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""The statuses with which servers refuse a request that they find wrong in some way."""
TOOLS_REFUSED = (400, 404, 422, 500, 501)  # the statuses with which servers say that a model takes no tools
ABOUT_TOOLS = re.compile(rb"tool|function", re.IGNORECASE)
Named = tuple[Restriction, ...]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusals:
    """Learns from refusals, and makes what follows them; one per app.

    `pause` is the wait before a request is sent a second time as it is.
    """

    knowledge: Knowledge
    policies: Policies
    attempts: Attempts
    shrink: Callable[[Decision, Budget, float], Awaitable[Decision]]  # `Decider.smaller`
    timeout: float  # seconds that a request waits for models
    pause: Callable[[], Awaitable[object]]

    async def after(self, refused: Attempt, answer: OpenedReply, timing: Timing) -> tuple[Attempt, Attempt | None]:
        """The attempt with what its answer has taught, and the one that follows it.

        None follows if the client gets the answer, as after an internal error.
        """
        try:
            if answer.refusal is None and (rule := rule_of(answer, refused)):
                return refused, self._with_other_reasoning(refused, rule)
            if (fewer := context_without(refused, answer)) is not None:
                decision = refused.decision.with_view(refused.decision.view.over(fewer.shown))
                return refused, self._following(refused, decision.in_context(fewer), Step.FEWER_PICTURES)
            if is_about_head(refused, answer):
                following: Attempt | None = await self._without_head(refused, timing)
            else:
                following = self._in_another_form(refused, answer) if answer.error else None
            if following is not None or answer.refusal is None:
                following = following or self._without_tool(refused, answer) or self._original(refused, answer)
                return refused, following
            if answer.refusal.kind is RefusedPart.OUTPUT:
                return refused, None
            await self._know_server(answer.refusal, refused)
            is_full = self._is_full_pool(answer.refusal, refused.decision)
            if is_full is not False:
                return refused, await self._repeated(refused) if is_full else None
            started = perf_counter()
            refused, policy = self.taught(refused, answer.refusal)
            left = max(self.timeout - timing.condense / 1000, 0.0)
            smaller = await self._smaller(refused, policy, answer.refusal, left)
            timing.condense += (perf_counter() - started) * 1000
        except ProxyError:
            return refused, None  # nothing fits
        except Exception:  # noqa: BLE001
            _log.exception("recovering from the upstream's refusal failed; the client gets the refusal")
            return refused, None
        except BaseException:
            await answer.reply.close()
            raise
        return refused, smaller

    def _following(self, refused: Attempt, decision: Decision, *steps: Step, named: Named = ()) -> Attempt:
        """The attempt to send a decision by these steps, for the restrictions that a refusal has `named`."""
        tried, restrictions = refused.tried.union(steps), (*refused.restrictions, *named)
        return self.attempts.of(decision)._replace(tried=tried, restrictions=restrictions)

    def _in_another_form(self, refused: Attempt, answer: OpenedReply) -> Attempt | None:
        """The same view in a form that an error names; None if that changes nothing."""
        decision = refused.decision
        named = restriction_in(answer.reply.status, answer.error, decision.policy.profile)
        if named is None or not decision.policy.rewrites:
            return None
        context = decision.context.for_profile(decision.policy.profile.under(named))
        view = replace(decision.view, transcript=decision.view.transcript.having(form=context.policy.profile.form))
        following = self._following(refused, decision.with_view(view).in_context(context), named=(named,))
        return None if following.decision.body == decision.body else following

    def _with_other_reasoning(self, refused: Attempt, rule: str) -> Attempt | None:
        """The same view with all its reasoning, or without any that may be bound; in every mode, and once.

        None if the view is so already: then the client's own list is refused.
        """
        decision, context = refused.decision, refused.context
        if Step.OTHER_REASONING in refused.tried:
            return None
        named: Named = (Restriction("reasoning", rule),) if rule == REQUIRED or not context.binds_reasoning else ()
        for restriction in named:
            context = context.for_profile(context.policy.profile.under(restriction))
        context = context._replace(refuses_reasoning=rule == BOUND)
        view = decision.view.bound_to(len(decision.view.transcript.chain) if rule == BOUND else None)
        reason = "" if decision.reason == Reason.REASONING_DROPPED else decision.reason
        changed = decision.with_view(view)._replace(context=context, reason=reason).with_loss_told()
        following = self._following(refused, changed, Step.OTHER_REASONING, named=named)
        if following.decision.body == decision.body:
            return None
        how, model = "with all" if rule == REQUIRED else "without", label(context.request.model)
        _log.info("%s refused a request because of the reasoning in it; it is sent again %s reasoning", model, how)
        return following

    async def _without_head(self, refused: Attempt, timing: Timing) -> Attempt:
        """The view without the opaque head that its server cannot read, condensed in the time left if it must be."""
        decision, context, head = refused.decision, refused.context, refused.decision.applied
        assert head is not None
        _log.warning("the upstream refused its own compaction %s; it is not sent again", head.id)
        known = context.recognised.condensations
        known = tuple(replace(each, standing=False, reverted=True) if each.is_opaque else each for each in known)
        context = context._replace(recognised=context.recognised._replace(condensations=known))
        for each in context.recognised.condensations if context.may_store else ():
            if each.is_opaque:
                await self.attempts.keeper.take_back(context.recognised, each)
        plain = undecided(context)._replace(own_tokens=decision.own_tokens, offer=decision.offer)
        budget = context.own_budget
        if budget is not None and plain.tokens_after >= budget.trigger:
            started = perf_counter()
            plain = await self.shrink(plain, budget, max(self.timeout - timing.condense / 1000, 0.0))
            timing.condense += (perf_counter() - started) * 1000
        return self._following(refused, plain._replace(reason=Reason.COMPACTION_REFUSED), Step.WITHOUT_HEAD)

    def _without_tool(self, refused: Attempt, answer: OpenedReply) -> Attempt | None:
        """The same view without the memory tool, if its model may take no tools."""
        if refused.rounds is None or answer.reply.status not in TOOLS_REFUSED or not ABOUT_TOOLS.search(answer.error):
            return None
        decision = refused.decision.in_context(refused.context.offering(NO_OFFER))
        decision = decision._replace(offer=NO_OFFER, reason=Reason.MEMORY_TOOL_REFUSED)
        return self._following(refused, decision, Step.WITHOUT_TOOL)

    def _original(self, refused: Attempt, answer: OpenedReply) -> Attempt | None:
        """The request as it came, if nothing explains the refusal and it would fit; else None."""
        is_explained = answer.reply.status not in UNEXPLAINED or refused.tried & {Step.SMALLER, Step.FEWER_PICTURES}
        if is_explained or not refused.decision.policy.rewrites:
            return None
        return self.attempts.original_of(refused.decision)

    async def _know_server(self, refusal: Refusal, refused: Attempt) -> None:
        """Has a server asked what it is, before its error is read; where a window is set nobody has asked it yet."""
        if refusal.is_server_error:
            await self.knowledge.asked(refused.context.request.lesson_scope)

    def _is_full_pool(self, refusal: Refusal, decision: Decision) -> bool | None:
        """Whether a refusal says that the server's cache is full; then it is known that requests share it."""
        is_full = self.knowledge.is_full_pool(refusal, decision)
        if is_full:
            pools, scope = self.knowledge.shared_pools, decision.context.request.lesson_scope._replace(tenant="")
            pools.put(scope, pools.get(scope) or Pool())
        return is_full

    async def _repeated(self, refused: Attempt) -> Attempt | None:
        """The same attempt after a server's cache was full, after a wait; None if it was repeated already."""
        if Step.REPEATED in refused.tried:
            return None
        _log.info("the cache of %s was full; the request is sent again as it is", label(refused.context.request.model))
        await self.pause()
        return refused._replace(tried=refused.tried | {Step.REPEATED})

    async def room_for(self, attempt: Attempt) -> None:
        """Returns when an attempt fits into the cache that requests share; one that is repeated has it alone."""
        if self.knowledge.shared_pools:
            alone = Step.REPEATED in attempt.tried
            await self.knowledge.take_room(attempt.decision, self.policies.usable, alone=alone)

    async def _smaller(self, refused: Attempt, policy: Policy, refusal: Refusal, seconds: float) -> Attempt | None:
        """A smaller view under that policy, once; models get `seconds`."""
        decision, context = refused.decision, refused.context
        if not decision.policy.rewrites or policy.budget is None or Step.SMALLER in refused.tried:
            return None
        reply_tokens = refusal.reply_tokens or context.request.body.envelope.reply_limit or 0
        sent = RefusedRequest(decision.tokens_after, decision.expected_tokens, reply_tokens)
        own_budget = policy.budget.scaled(context.calibrated.scale)
        context = context._replace(policy=policy, own_budget=own_budget, is_spared=False)
        aim = retry_budget(policy.budget, refusal, sent)
        if refused.context.is_spared:
            # The list as the client sent it was refused; the view is made of the whole conversation again.
            decision = decision.with_view(fold_view(context, None))
        smaller = await self.shrink(decision.in_context(context), aim, seconds)
        if smaller.tokens_after >= sent.tokens:
            return None
        return self._following(refused, smaller, Step.SMALLER)

    def taught(self, attempt: Attempt, refusal: Refusal) -> tuple[Attempt, Policy]:
        """The refused attempt with the size that bounds its session now, and the policy that holds now."""
        decision, request = attempt.decision, attempt.context.request
        window = self.knowledge.window_after(refusal, decision)
        size = self.knowledge.size_after(refusal, decision, self.policies.usable)
        decision = decision.in_context(decision.context._replace(size_refused=size))
        limit, bound = request.body.envelope.reply_limit, size.tokens if size else None
        if refusal.is_silent and bound is None and window.tokens is None:
            bound = decision.expected_tokens  # for the next attempt alone
        policy = self.policies.refused(decision.policy, window, bound, request.lesson_scope, limit)
        return attempt._replace(decision=decision), policy

    async def keep(self, attempt: Attempt) -> None:
        """Keeps the size that was refused, although the request failed."""
        context, size = attempt.context, attempt.context.size_refused
        if size is None:
            return
        if context.recognised.session is None:
            self.knowledge.keep_size(context, size)
        elif context.may_store:
            await self.attempts.keeper.amend(
                context.recognised, lambda session: session._replace(size_refused=size), creates=False
            )

    def learn(self, accepted: Attempt) -> None:
        """Learns what the refusals before an accepted attempt have named."""
        scope = accepted.context.request.lesson_scope
        if accepted.restrictions:
            self.knowledge.profiles.learn(scope, accepted.restrictions)
        if Step.WITHOUT_TOOL in accepted.tried:
            self.attempts.searcher.note_refusal(scope)

    def following(self, attempt: Attempt, rounds: HiddenRounds, send: SendBody) -> Following:
        """What gets the replies after the searches of an attempt."""
        context = attempt.context

        def aim(refusal: Refusal, tokens: int) -> int | None:
            """Learns from the refusal of a request after a search; gives the tokens that the next one may have."""
            self.knowledge.window_after(refusal, attempt.decision)
            if refusal.window is None:
                return None
            reply_tokens = refusal.reply_tokens or context.request.body.envelope.reply_limit or 0
            sent = RefusedRequest(tokens, context.calibrated.scale.upstream(tokens), reply_tokens)
            return int(most_tokens(refusal, sent, refusal.window, refusal.window))

        return Following(rounds, send, aim)

    def note_accepted(self, attempt: Attempt, size: SizeRefused) -> None:
        """Notes that a view was accepted, which ends a size refused that is smaller."""
        decision, is_ended = attempt.decision, ends_size(attempt.decision)
        if is_ended:
            text = "prompts of session %s are no longer limited to %d tokens: the upstream accepted %d"
            _log.warning(text, decision.session, size.tokens, decision.expected_tokens)
        if not attempt.stores:
            self.knowledge.keep_size(attempt.context, None if is_ended else size)

    def after_late(self, attempt: Attempt, refusal: Refusal) -> Attempt:
        """The attempt with what a refusal has taught that came after content."""
        decision, refusal = attempt.decision, refusal.without_quoted(attempt.decision.body)
        if self._is_full_pool(refusal, decision) is not False:
            return attempt
        attempt, _ = self.taught(attempt, refusal)
        if not attempt.stores:
            self.knowledge.keep_size(attempt.context, attempt.context.size_refused)
        return attempt


def may_be_refused(attempt: Attempt) -> bool:
    """Whether an attempt may be refused for its length, and another one may then follow.

    That is so from half of what is known to fit; if nothing is known, from the least window.
    """
    budget = attempt.decision.policy.budget
    return _is_refusable(attempt, budget.usable // 2 if budget is not None else MIN_WINDOW)


def is_perhaps_refused(attempt: Attempt) -> bool:
    """The same where a window is known that the server itself has not stated, so that it may take less."""
    policy = attempt.decision.policy
    is_stated = policy.size_refused is not None or (policy.window.is_known and not policy.window.is_set)
    return not is_stated and _is_refusable(attempt, MIN_WINDOW)


def _is_refusable(attempt: Attempt, least: int) -> bool:
    decision = attempt.decision
    return decision.policy.rewrites and Step.SMALLER not in attempt.tried and decision.expected_tokens >= least


class RefusedRequest(NamedTuple):
    """The request that was refused."""

    tokens: int  # tokens of the view by our own count
    expected_tokens: int  # tokens that the upstream was expected to count for it
    reply_tokens: int  # tokens that it asked for as a reply; 0 if neither the request nor the refusal states them


def retry_budget(budget: Budget, refusal: Refusal, refused: RefusedRequest) -> Budget:
    """The budget by which a refused view is condensed, in tokens of our own count; `budget` is in the upstream's.

    If the refusal states no window, the view is brought to a share of the refused one, whatever the window is.
    """
    usable = max(budget.usable, 1)
    if refusal.window is None:
        share = UNKNOWN_SHARE * refused.tokens / usable
        return replace(budget, marks=Marks(share, share, share, budget.marks.step))
    ratio = _ratio(refusal, refused)
    most = min(budget.trigger / ratio, most_tokens(refusal, refused, budget.window, usable))
    goal = min(budget.target / ratio, GOAL_SHARE * most)
    return replace(budget, marks=Marks(most / usable, most / usable, goal / usable, budget.marks.step))


def most_tokens(refusal: Refusal, refused: RefusedRequest, window: int, usable: int) -> float:
    """The most tokens, by our own count, that a request may have after one that was refused for a window."""
    room = min(usable, window - refused.reply_tokens) if refused.reply_tokens < window else usable
    return SMALLER * min(room / _ratio(refusal, refused), refused.tokens)


def _ratio(refusal: Refusal, refused: RefusedRequest) -> float:
    """The ratio of upstream tokens to our own, at least 1.

    A refusal without a count still shows that the request did not fit.
    """
    counted = refusal.prompt_tokens or max(refused.expected_tokens, (refusal.window or 0) - refused.reply_tokens)
    return min(max(counted / max(refused.tokens, 1), 1.0), MAX_RATIO)


# -- fewer pictures ---------------------------------------------------------------------------------
#
# The oldest pictures leave a view whose request was refused for its bytes, or for its pictures. They are counted from
# the beginning of the chain, and the session remembers how many were left out, so that the next view begins with the
# bytes of this one. A later refusal leaves out more.

_STATUSES = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_BYTES = re.compile(
    r"request_too_large|(?:request|payload|body|entity|content)[^.;]{0,40}(?:too large|exceeds? the max)"
    r"|(?:request|payload|body)[^.;]{0,60}exceed[^.;]{0,40}(?:size|bytes|[mk]i?b\b)"
    r"|^request too long$|request body: length limit exceeded"
)
_PICTURES = re.compile(
    r"at most ([1-9]\d{0,3}) images?(?:\(s\))? may be provided"
    r"|too many images(?: and documents)?: [\d +]{1,20}> ?(\d{1,4})\b|too much media: [\w +]{1,60}> ?(\d{1,4})\b"
    r"|\d images, exceeding the maximum of (\d{1,4})\b|image count \d{1,4} exceeds limit (\d{1,4})\b"
    r"|can only include (\d{1,4}) image links"
    r"|too many images\b(?:.{0,60}?\b(?:max(?:imum)?(?: is| of)?|up to|at most) (\d{1,4})\b)?"
    r"|many-image requests"
)
"""What vendors and servers are known to say of too many pictures, with the number that they allow."""
_RATE = re.compile(r"per (?:min|minute|hour|day)\b|\b[rt]pm\b|\btokens?\b")
MANY = 20  # pictures from which a vendor's stricter rule about their size holds ("many-image requests")
SHARE_KEPT = 0.5  # the share of the refused bytes, or pictures, that the next request has at most


def context_without(attempt: Attempt, refused: OpenedReply) -> RequestContext | None:
    """The context that leaves out enough pictures; None if the error is about something else, or none can leave."""
    context, decision = attempt.context, attempt.decision
    status, error = refused.reply.status, refused.error
    allowed = pictures_allowed(status, error)
    is_about_pictures = allowed is not None or refuses_bytes(status, error)
    if not (is_about_pictures and decision.policy.rewrites) or Step.FEWER_PICTURES in attempt.tried:
        return None
    if context.measured is not context.whole:
        return None  # the list as its client sent it, in which other messages have other places
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


_ABOUT_HEAD = re.compile(rb"compaction|encrypted[ _]content", re.IGNORECASE)


def is_about_head(attempt: Attempt, refused: OpenedReply) -> bool:
    """Whether a refusal says that the server cannot read the opaque head of a view."""
    head = attempt.decision.applied
    is_opaque = head is not None and head.is_opaque and Step.WITHOUT_HEAD not in attempt.tried
    return is_opaque and refused.reply.status in UNEXPLAINED and bool(_ABOUT_HEAD.search(refused.error))


def rule_of(refused: OpenedReply, attempt: Attempt) -> str | None:
    """The rule for reasoning that a refusal names, if the request has any; in Responses the server just drops it."""
    status, decision = refused.reply.status, attempt.decision
    is_refusal = bool(refused.error) and (status in REFUSING or status < HTTPStatus.BAD_REQUEST)
    if not is_refusal or decision.view.counter.dialect.drops_reasoning:
        return None  # before the body is searched, which is long
    if not (b'"thinking' in decision.body or b'"reasoning' in decision.body or decision.view.transcript.is_signed):
        return None
    return rule_named_in(refused.error.decode("utf-8", "replace"))
