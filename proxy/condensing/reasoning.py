"""A request that was refused for its reasoning: whether that was so, and what is sent instead.

`strategies/core/reasoning.py` explains the whole. `RequestContext.bound_under` knows which head a view has and what its
branch remembers of the one before; this file has what the upstream says to that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from proxy.condensing.attempt import Attempt
from proxy.condensing.context import RequestContext
from proxy.condensing.decision import Decision
from proxy.knowledge.profiles import REFUSING, Profiles
from proxy.quoting import label
from proxy.reasons import Reason
from proxy.reply.opening import OpenedReply
from strategies.core.reasoning import BOUND, REQUIRED, rule_named_in

_log = logging.getLogger(__name__)


def rule_of(refused: OpenedReply, attempt: Attempt) -> str | None:
    """The rule for reasoning that a refusal names, if the request has any; in Responses the server just drops it."""
    status, decision = refused.reply.status, attempt.decision
    has_any = b'"thinking' in decision.body or b'"reasoning' in decision.body or decision.view.transcript.is_signed
    is_refusal = bool(refused.error) and (status in REFUSING or status < HTTPStatus.BAD_REQUEST)
    if not (has_any and is_refusal) or decision.view.counter.dialect.drops_reasoning:
        return None
    return rule_named_in(refused.error.decode("utf-8", "replace"))


def with_other_reasoning(
    refused: Attempt, rule: str, attempt: Callable[[Decision, RequestContext], Attempt], profiles: Profiles
) -> Attempt | None:
    """The same view with all its reasoning, or without any that may be bound; in every mode, and once.

    None if the view is so already: then the client's own list is refused. A rule that was not known is learned.
    """
    decision, context = refused.decision, refused.context
    if context is None or refused.has_other_reasoning:
        return None
    profile, scope = context.policy.profile, context.request.lesson_scope
    is_lesson = rule == REQUIRED or not context.binds_reasoning
    context = context.for_profile(profile.learned("reasoning", value=rule) if is_lesson else profile)
    context = context._replace(refuses_reasoning=rule == BOUND)
    view = decision.view.bound_to(len(decision.view.transcript.chain) if rule == BOUND else None)
    reason = "" if decision.reason == Reason.REASONING_DROPPED else decision.reason
    decision = decision.with_view(view)._replace(policy=context.policy, reason=reason).with_loss_told()
    following = attempt(decision, context)
    if following.decision.body == refused.decision.body:
        return None
    if is_lesson:
        profiles.learn_reasoning(scope, rule)
    how = "with all of" if rule == REQUIRED else "without"
    _log.info("%s refused a request for its reasoning; it is sent once more %s it", label(scope.model), how)
    return following._replace(is_last=refused.is_last, has_other_reasoning=True)
