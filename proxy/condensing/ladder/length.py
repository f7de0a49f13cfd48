"""A smaller view, once: for the window that a refusal for length states, or a share of what was refused."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.policy import Policy
from proxy.condensing.turn import expecting, fold_view
from proxy.errors import ProxyError
from proxy.overflow import Refusal, RefusedPart
from proxy.reply.opening import OpenedReply
from strategies.core.budget import Budget, Marks

MAX_RATIO = 4.0  # largest believable ratio of upstream tokens to our own; a larger one describes another prompt
SMALLER = 0.95  # the next request is at most this share of the refused one, and of what is said to fit: counts differ
UNKNOWN_SHARE = 0.70  # the same share if the refusal states no window
GOAL_SHARE = 0.8  # the target is at most this share of the maximum that may be sent


def recognises(_refused: Attempt, answer: OpenedReply) -> bool:
    return answer.refusal is not None


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, timing: Timing) -> Next:
    refusal = answer.refusal
    if refusal is None or refusal.kind is RefusedPart.OUTPUT:
        return Next(refused)
    refused = await _counted(parts, refused)
    refused, policy = taught(parts, refused, refusal)
    try:
        return Next(refused, await _smaller(parts, refused, policy, refusal, timing))
    except ProxyError:
        return Next(refused)  # nothing fits; what was taught stays


async def _counted(parts: Parts, refused: Attempt) -> Attempt:
    """The attempt with its tokens counted: neither what a refusal teaches nor what fits then is an estimate."""
    decision = refused.decision
    if not decision.context.is_estimated:
        return refused
    decision = decision.in_context(await parts.counted(decision.context))
    return refused._replace(decision=expecting(decision.with_view(fold_view(decision.context, decision.applied))))


async def _smaller(parts: Parts, refused: Attempt, policy: Policy, refusal: Refusal, timing: Timing) -> Attempt | None:
    """A smaller view under that policy; raises `ProxyError` if nothing fits."""
    decision, context = refused.decision, refused.decision.context
    if not context.policy.rewrites or policy.budget is None or Step.SMALLER in refused.tried:
        return None
    reply_tokens = refusal.reply_tokens or context.request.body.envelope.reply_limit or 0
    sent = RefusedRequest(decision.tokens_after, decision.expected_tokens, reply_tokens)
    was_spared = context.is_spared
    context = context.for_smaller(policy, policy.budget.scaled(context.calibrated.scale))
    if was_spared:
        # The list as the client sent it was refused; the view is made of the whole conversation again.
        decision = decision.with_view(fold_view(context, None))
    smaller = await parts.shrunk(decision.in_context(context), retry_budget(policy.budget, refusal, sent), timing)
    if smaller.tokens_after >= sent.tokens:
        return None
    return parts.following(refused, smaller, Step.SMALLER)


def taught(parts: Parts, attempt: Attempt, refusal: Refusal) -> tuple[Attempt, Policy]:
    """The refused attempt with the size that bounds its session now, and the policy that holds now."""
    decision, request = attempt.decision, attempt.decision.context.request
    window = parts.knowledge.window_after(refusal, decision)
    size = parts.knowledge.size_after(refusal, decision, parts.policies.usable)
    decision = decision.in_context(decision.context._replace(size_refused=size))
    limit, bound = request.body.envelope.reply_limit, size.tokens if size else None
    if refusal.is_silent and bound is None and window.tokens is None:
        bound = decision.expected_tokens  # for the next attempt alone
    policy = parts.policies.refused(decision.context.policy, window, bound, request.lesson_scope, limit)
    return attempt._replace(decision=decision), policy


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
    most = min(budget.trigger / ratio, most_tokens(refusal, refused, budget.full_window, budget.fits))
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


RUNG = Rung(recognises, after)
