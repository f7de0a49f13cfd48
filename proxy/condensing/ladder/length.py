"""A smaller view, once: for the window that a refusal for length states, or a share of what was refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step, expecting
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.policy import Policy
from proxy.condensing.reasoning import fold_view
from proxy.condensing.traits import size_refused
from proxy.condensing.turn import Decision
from proxy.errors import ProxyError
from proxy.protocols.opening import OpenedReply
from proxy.servers.refusals import Size, Unit
from proxy.servers.windows import REFUSED_FOR, SOURCE, SizeRefused, Window
from strategies.core.budget import Budget, Marks

MAX_RATIO = 4.0  # largest believable ratio of upstream tokens to our own; a larger one describes another prompt
SMALLER = 0.95  # the next request is at most this share of the refused one, and of what is said to fit: counts differ
UNKNOWN_SHARE = 0.70  # the same share if the refusal states no window
GOAL_SHARE = 0.8  # the target is at most this share of the maximum that may be sent
_log = logging.getLogger(__name__)


def recognises(_refused: Attempt, answer: OpenedReply) -> bool:
    return answer.refusal.length is not None


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, timing: Timing) -> Next:
    size = answer.refusal.size(Unit.PROMPT)
    if size is None:
        return Next(refused)
    refused = await _counted(parts, refused)
    refused, policy = taught(parts, refused, size, is_silent=answer.refusal.is_silent)
    try:
        return Next(refused, await _smaller(parts, refused, policy, size, timing))
    except ProxyError:
        return Next(refused)  # nothing fits; what was taught stays


async def _counted(parts: Parts, refused: Attempt) -> Attempt:
    """The attempt with its tokens counted: neither what a refusal teaches nor what fits then is an estimate."""
    decision = refused.decision
    if not decision.context.is_estimated:
        return refused
    decision = decision.in_context(await parts.counted(decision.context))
    return refused._replace(decision=expecting(decision.with_view(fold_view(decision.context, decision.applied))))


async def _smaller(parts: Parts, refused: Attempt, policy: Policy, size: Size, timing: Timing) -> Attempt | None:
    """A smaller view under that policy; raises `ProxyError` if nothing fits."""
    decision, context = refused.decision, refused.decision.context
    if not context.policy.rewrites or policy.budget is None or Step.SMALLER in refused.tried:
        return None
    reply_tokens = size.reply or context.request.body.envelope.reply_limit or 0
    sent = RefusedRequest(decision.tokens_after, decision.expected_tokens, reply_tokens)
    sized = context.sized._replace(budget=policy.budget.scaled(context.sized.calibrated.scale))
    context = context._replace(policy=policy, sized=sized)
    if context.is_spared:
        # The list as the client sent it was refused; the view is made of the whole conversation again.
        whole = context.history.whole
        sized = sized._replace(overhead=whole.overhead + context.offer.tokens)
        context = context._replace(sized=sized, is_spared=False, history=context.history.viewing(whole))
        decision = decision.with_view(fold_view(context, None))
    smaller = await parts.shrunk(decision.in_context(context), retry_budget(policy.budget, size, sent), timing)
    if smaller.tokens_after >= sent.tokens:
        return None
    return parts.following(refused, smaller, Step.SMALLER)


def taught(parts: Parts, attempt: Attempt, refused: Size, *, is_silent: bool) -> tuple[Attempt, Policy]:
    """The refused attempt with the size that bounds its session now, and the policy that holds now."""
    decision, request = attempt.decision, attempt.decision.context.request
    window = window_after(parts, refused, decision)
    known = size_refused.TRAIT.of(decision.context)
    size = known if is_silent else _size_after(parts, refused, decision)
    decision = decision.in_context(size_refused.TRAIT.put(decision.context, size))
    limit, bound = request.body.envelope.reply_limit, size.tokens if size else None
    if is_silent and bound is None and window.tokens is None:
        bound = decision.expected_tokens  # for the next attempt alone
    policy = parts.policies.refused(decision.context.policy, window, bound, request.model, limit)
    return attempt._replace(decision=decision), policy


def window_after(parts: Parts, size: Size, decision: Decision) -> Window:
    """The window that holds after a refusal for length.

    One that is set stands. Else the window that the refusal states is learned if nothing smaller is known, but not
    from one who only claims to be of its tenant.
    """
    window, request = decision.context.policy.window, decision.context.request
    if size.limit is None or window.is_set:
        return window
    window = window.lowered(size.limit)
    if window.source == SOURCE and (request.trust.accepted or not request.trust.is_claimed):
        parts.servers.learned.learn(request.lesson_scope, size.limit, shares=not request.controls.no_store)
    return window


def _size_after(parts: Parts, refused: Size, decision: Decision) -> SizeRefused | None:
    """The size that bounds a session after a refusal for length; None if none does.

    A refusal without a number teaches it, and one with a smaller window than the one that is set.
    """
    context, window = decision.context, decision.context.policy.window
    known, request = size_refused.TRAIT.of(context), context.request
    if not context.policy.rewrites or (refused.limit is not None and not window.is_set):
        return known
    size = decision.expected_tokens
    if refused.limit is not None:
        if window.tokens is not None and window.tokens <= refused.limit:
            return known
        size = parts.policies.usable(refused.limit, request.model, request.body.envelope.reply_limit)
    size = min(size, known.tokens) if known is not None else size
    text = "a prompt of %d tokens was refused for %s; for an hour, prompts of session %s have at most %d"
    _log.warning(text, decision.expected_tokens, request.lesson_scope.named, decision.session, size)
    return SizeRefused(request.model, size, parts.servers.clock() + REFUSED_FOR, request.upstream.base_url)


class RefusedRequest(NamedTuple):
    """The request that was refused."""

    tokens: int  # tokens of the view by our own count
    expected_tokens: int  # tokens that the upstream was expected to count for it
    reply_tokens: int  # tokens that it asked for as a reply; 0 if neither the request nor the refusal states them


def retry_budget(budget: Budget, size: Size, refused: RefusedRequest) -> Budget:
    """The budget by which a refused view is condensed, in tokens of our own count; `budget` is in the upstream's.

    If the refusal states no window, the view is brought to a share of the refused one, whatever the window is.
    """
    usable = max(budget.usable, 1)
    if size.limit is None:
        share = UNKNOWN_SHARE * refused.tokens / usable
        return replace(budget, marks=Marks(share, share, share, budget.marks.step))
    ratio = _ratio(size, refused)
    most = min(budget.trigger / ratio, most_tokens(size, refused, budget.full_window, budget.fits))
    goal = min(budget.target / ratio, GOAL_SHARE * most)
    return replace(budget, marks=Marks(most / usable, most / usable, goal / usable, budget.marks.step))


def most_tokens(size: Size, refused: RefusedRequest, window: int, usable: int) -> float:
    """The most tokens, by our own count, that a request may have after one that was refused for a window."""
    room = min(usable, window - refused.reply_tokens) if refused.reply_tokens < window else usable
    return SMALLER * min(room / _ratio(size, refused), refused.tokens)


def _ratio(size: Size, refused: RefusedRequest) -> float:
    """The ratio of upstream tokens to our own, at least 1.

    A refusal without a count still shows that the request did not fit.
    """
    counted = size.had or max(refused.expected_tokens, (size.limit or 0) - refused.reply_tokens)
    return min(max(counted / max(refused.tokens, 1), 1.0), MAX_RATIO)


RUNG = Rung(recognises, after)
