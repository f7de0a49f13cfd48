"""Numbers of a decision as people and programs read them."""

from __future__ import annotations

from proxy.condensing.policy import Policy


def budget_document(policy: Policy) -> dict[str, int] | None:
    """The effective numbers of a budget, in tokens of the upstream."""
    if policy.budget is None:
        return None
    names = ("reserve", "usable", "prepare", "trigger", "target", "step", "least_headroom")
    return {name: getattr(policy.budget.unscaled, name) for name in names}


def short(tokens: int) -> str:
    """27,912 as `27.9k`."""
    return f"{tokens / 1000:.1f}k" if tokens >= 1000 else str(tokens)
