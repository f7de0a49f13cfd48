"""The allowance: what votes and embeddings together may spend in one session.

It is one window, and a share of the prompt tokens that the session has forwarded so far. What was spent is in the
session's totals, so that it is known to every process and after a restart.
"""

from __future__ import annotations

from proxy.request.intake import Case

ON_VOTES, ON_EMBEDDINGS = "judge_tokens", "embedding_tokens"


def spent(case: Case, total: str) -> int:
    """What one of the session's totals was when the request came."""
    return case.recognised.session.totals.get(total, 0) if case.recognised.session else 0


def left_by_votes(case: Case, share: float) -> int:
    """Tokens of the allowance that votes have not spent, embeddings or no; below 0 where they went over it."""
    budget = case.policy.budget
    window = budget.made_for if budget else 0
    forwarded = spent(case, "forwarded_tokens") + case.measured.tokens
    return int(window + share * forwarded) - spent(case, ON_VOTES)


def left(case: Case, share: float) -> int:
    """Tokens that the session may still spend."""
    return left_by_votes(case, share) - spent(case, ON_EMBEDDINGS)
