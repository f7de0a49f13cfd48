"""The allowance of a session: the tokens that votes and embeddings may spend. No I/O."""

from __future__ import annotations

from proxy.condensing.context import RequestContext

ON_VOTES, ON_EMBEDDINGS = "judge_tokens", "embedding_tokens"


def spent_before(context: RequestContext, total: str) -> int:
    """One of the session's totals, as it was when the request came."""
    return context.recognised.session.totals.get(total, 0) if context.recognised.session else 0


def remaining_after_votes(context: RequestContext, share: float) -> int:
    """Tokens of the allowance that votes have not spent; embeddings are not counted. Negative if votes overspent it."""
    budget = context.policy.budget
    window = budget.nominal_window if budget else 0
    forwarded = spent_before(context, "forwarded_tokens") + context.measured.tokens
    return int(window + share * forwarded) - spent_before(context, ON_VOTES)


def remaining(context: RequestContext, share: float) -> int:
    """Tokens that the session may still spend on votes and embeddings."""
    return remaining_after_votes(context, share) - spent_before(context, ON_EMBEDDINGS)
