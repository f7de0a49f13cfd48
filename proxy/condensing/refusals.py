"""What a refusal for length teaches, and the smaller view that follows it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from proxy.condensing.attempt import Attempt, RefusedRequest, ends_size, retry_budget
from proxy.condensing.knowledge import Knowledge
from proxy.condensing.policy import Policies, Policy
from proxy.condensing.turn import Decision
from proxy.overflow import Refusal, RefusedPart
from proxy.reply.watching import WatchedReply
from proxy.sessions.keeping import Keeper
from strategies.core.budget import Budget

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusals:
    """Learns from refusals for length; one per app."""

    knowledge: Knowledge
    policies: Policies
    keeper: Keeper
    shrink: Callable[[Decision, Budget, float], Awaitable[Decision | None]]
    """`Decider.smaller`."""

    def taught(self, attempt: Attempt, refusal: Refusal) -> tuple[Attempt, Policy]:
        """The refused attempt with the size that bounds its session now, and the policy that holds now."""
        decision, request = attempt.decision, attempt.context.request
        window = self.knowledge.window_after(refusal, decision)
        size = self.knowledge.size_after(refusal, decision, self.policies.usable)
        decision = decision.in_context(decision.context._replace(size_refused=size))
        limit = request.body.envelope.reply_limit
        policy = self.policies.refused(decision.policy, window, size and size.tokens, request.lesson_scope, limit)
        return attempt._replace(decision=decision), policy

    async def smaller(self, attempt: Attempt, policy: Policy, refusal: Refusal, seconds: float) -> Decision | None:
        """A decision for a smaller view under that policy; models get `seconds`."""
        decision, context = attempt.decision, attempt.context
        if not decision.policy.rewrites or policy.budget is None or attempt.is_last:
            return None
        reply_tokens = refusal.reply_tokens or context.request.body.envelope.reply_limit or 0
        aim = retry_budget(
            policy.budget, refusal, RefusedRequest(decision.tokens_after, decision.expected_tokens, reply_tokens)
        )
        own_budget = policy.budget.scaled(context.calibrated.scale)
        context = context._replace(policy=policy, own_budget=own_budget, is_spared=False)
        return await self.shrink(decision.in_context(context), aim, seconds)

    async def keep(self, attempt: Attempt) -> None:
        """Keeps the size that was refused, although the request failed."""
        context, size = attempt.context, attempt.context.size_refused
        if size is None:
            return
        if context.recognised.session is None:
            self.knowledge.keep_size(context, size)
        elif context.may_store:
            await self.keeper.amend(
                context.recognised, lambda session: session._replace(size_refused=size), creates=False
            )

    def accepted(self, attempt: Attempt) -> None:
        """Notes that a view was accepted, which ends a smaller size refused."""
        decision, size = attempt.decision, attempt.context.size_refused
        if size is None:
            return
        is_ended = ends_size(decision)
        if is_ended:
            text = "session %s is not kept to %d tokens any more, %d were accepted"
            _log.warning(text, decision.session, size.tokens, decision.expected_tokens)
        if not attempt.stores:
            self.knowledge.keep_size(attempt.context, None if is_ended else size)

    def learn_late(self, attempt: Attempt, watched: WatchedReply) -> Attempt | None:
        """The attempt after a refusal that its client has got, because content had left before it; else None."""
        decision, refusal = attempt.decision, watched.refusal()
        if refusal is None or refusal.kind is RefusedPart.OUTPUT:
            return None
        refusal = refusal.without_quoted(decision.body)
        if self.knowledge.is_full_pool(refusal, decision) is not False:
            return attempt
        attempt, _ = self.taught(attempt, refusal)
        if not attempt.stores:
            self.knowledge.keep_size(attempt.context, attempt.context.size_refused)
        return attempt
