"""The allowance: what votes and embeddings together may spend in one session.

It is one window plus a share of the prompt tokens that the session has forwarded so far. The session's totals say what
was spent, so every process knows it, also after a restart.
"""

from __future__ import annotations

from proxy.condensing.case import Case

ON_VOTES, ON_EMBEDDINGS = "judge_tokens", "embedding_tokens"


def spent_before(case: Case, total: str) -> int:
    """One of the session's totals, as it was when the request came."""
    return case.recognised.session.totals.get(total, 0) if case.recognised.session else 0


def remaining_after_votes(case: Case, share: float) -> int:
    """Tokens of the allowance that votes have not spent; embeddings are not counted. Negative if votes overspent it."""
    budget = case.policy.budget
    window = budget.nominal_window if budget else 0
    forwarded = spent_before(case, "forwarded_tokens") + case.measured.tokens
    return int(window + share * forwarded) - spent_before(case, ON_VOTES)


def remaining(case: Case, share: float) -> int:
    """Tokens that the session may still spend on votes and embeddings."""
    return remaining_after_votes(case, share) - spent_before(case, ON_EMBEDDINGS)
