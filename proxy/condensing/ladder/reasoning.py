"""The same view with all its reasoning, or without any that may be bound; in every mode, and once.

`strategies/core/reasoning.py` explains the whole. `proxy/condensing/reasoning.py` knows which head a view has and what
its branch remembers of the one before; here is what the upstream says to that.
"""

from __future__ import annotations

import logging

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder.rung import Named, Next, Parts, Rung
from proxy.condensing.reasoning import binds
from proxy.condensing.traits import form
from proxy.protocols.opening import OpenedReply
from proxy.quoting import label
from proxy.reasons import Reason
from proxy.servers.refusals import Refusal, Subject
from proxy.settings.profile import Restriction
from strategies.core.reasoning import BOUND, REQUIRED

RULES = {Subject.BOUND_REASONING: BOUND, Subject.REQUIRED_REASONING: REQUIRED}
_log = logging.getLogger(__name__)


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    return not answer.refusal.sizes and rule_of(refused, answer) is not None


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, _timing: Timing) -> Next:
    """Nothing follows if the view is so already: then the client's own list is refused."""
    decision, context, rule = refused.decision, refused.decision.context, rule_of(refused, answer) or BOUND
    if Step.OTHER_REASONING in refused.tried:
        return Next(refused)
    named: Named = (Restriction("reasoning", rule),) if rule == REQUIRED or not binds(context) else ()
    for restriction in named:
        context = form.under(context, context.policy.profile.under(restriction))
    context = context._replace(refuses_reasoning=rule == BOUND, must_store=rule == BOUND)
    view = decision.view.bound_to(len(decision.view.transcript.chain) if rule == BOUND else None)
    reason = "" if decision.reason == Reason.REASONING_DROPPED else decision.reason
    changed = decision.with_view(view)._replace(context=context, reason=reason).with_loss_told()
    following = parts.following(refused, changed, Step.OTHER_REASONING, named=named)
    if following.decision.body == decision.body:
        return Next(refused)
    how, model = "with all" if rule == REQUIRED else "without", label(context.request.model)
    _log.info("%s refused a request because of the reasoning in it; it is sent again %s reasoning", model, how)
    return Next(refused, following)


def rule_of(refused: Attempt, answer: OpenedReply) -> str | None:
    """The rule for reasoning that a refusal names, if the request has any; in Responses the server just drops it."""
    rule, decision = rule_in(answer.refusal), refused.decision
    if rule is None or decision.view.counter.dialect.drops_reasoning:
        return None
    has_any = b'"thinking' in decision.body or b'"reasoning' in decision.body or decision.view.transcript.is_signed
    return rule if has_any else None


def rule_in(refusal: Refusal) -> str | None:
    """The rule that the error to a request with reasoning names; None if it is about something else."""
    return next((rule for subject, rule in RULES.items() if subject in refusal.subjects), None)


RUNG = Rung(recognises, after)
