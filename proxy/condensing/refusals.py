"""What a refusal for length teaches, and the smaller view that follows it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from proxy.condensing.attempt import Attempt, RefusedRequest, ends_size, retry_budget
from proxy.condensing.context import RequestContext
from proxy.condensing.decision import Decision
from proxy.condensing.knowledge import Knowledge
from proxy.condensing.policy import Policies, Policy
from proxy.overflow import Refusal, RefusedPart
from proxy.reply.watching import WatchedReply
from proxy.request.wire import ClientRequest
from proxy.sessions.keeping import Keeper
from strategies.core.budget import Budget

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusals:
    """Learns from refusals for length; one per app."""

    knowledge: Knowledge
    policies: Policies
    keeper: Keeper
    shrink: Callable[[Decision, RequestContext, Budget, float], Awaitable[Decision | None]]
    """`Decider.smaller`."""

    def taught(self, attempt: Attempt, refusal: Refusal, request: ClientRequest) -> tuple[Attempt, Policy]:
        """The refused attempt with the size that bounds its session now, and the policy that holds now."""
        decision, context = attempt.decision, attempt.context
        window = self.knowledge.window_after(refusal, decision, request)
        size = None
        if context is not None:
            size = self.knowledge.size_after(refusal, decision, context, self.policies.usable)
            attempt = attempt._replace(context=context._replace(size_refused=size))
        limit = request.body.envelope.reply_limit
        return attempt, self.policies.refused(
            decision.policy, window, size and size.tokens, request.lesson_scope, limit
        )

    async def smaller(
        self, attempt: Attempt, policy: Policy, refusal: Refusal, seconds: float
    ) -> tuple[Decision, RequestContext] | None:
        """A decision for a smaller view under that policy, with its context; models get `seconds`."""
        decision, context = attempt.decision, attempt.rewritable
        if context is None or policy.budget is None or attempt.is_last:
            return None
        reply_tokens = refusal.reply_tokens or context.request.body.envelope.reply_limit or 0
        sent = RefusedRequest(decision.tokens_after, decision.expected_tokens, reply_tokens)
        context = context._replace(policy=policy.scaled(context.calibrated.scale), is_spared=False)
        aim = retry_budget(policy.budget, refusal, sent)
        smaller = await self.shrink(decision, context, aim, seconds)
        return (smaller, context) if smaller is not None else None

    async def keep(self, attempt: Attempt) -> None:
        """Keeps the size that was refused, although the request failed."""
        context = attempt.context
        size = context.size_refused if context is not None else None
        if context is None or size is None:
            return
        if context.recognised.session is None:
            self.knowledge.keep_size(context, size)
        elif context.may_store:
            await self.keeper.amend(
                context.recognised, lambda session: session._replace(size_refused=size), creates=False
            )

    def accepted(self, attempt: Attempt) -> None:
        """Notes that a view was accepted, which ends a smaller size refused."""
        context, decision = attempt.context, attempt.decision
        if context is None or context.size_refused is None:
            return
        is_ended = ends_size(decision, context)
        if is_ended:
            text = "session %s is not kept to %d tokens any more, %d were accepted"
            _log.warning(text, decision.session, context.size_refused.tokens, decision.expected_tokens)
        if attempt.update is None:
            self.knowledge.keep_size(context, None if is_ended else context.size_refused)

    def learn_late(self, attempt: Attempt, watched: WatchedReply, request: ClientRequest) -> Attempt | None:
        """The attempt after a refusal that its client has got, because content had left before it; else None."""
        decision, refusal = attempt.decision, watched.refusal()
        if refusal is None or refusal.kind is RefusedPart.OUTPUT:
            return None
        refusal = refusal.without_quoted(decision.body)
        if self.knowledge.is_full_pool(refusal, decision, request) is not False:
            return attempt
        attempt, _ = self.taught(attempt, refusal, request)
        if attempt.update is not None and attempt.context is not None:
            size = attempt.context.size_refused
            return attempt._replace(update=attempt.update._replace(size_refused=size, ends_size=False))
        if attempt.context is not None:
            self.knowledge.keep_size(attempt.context, attempt.context.size_refused)
        return attempt
