"""Where the tokens are: the account in our own 400, so that its reader knows what to shorten."""

from __future__ import annotations

from proxy.condensing.decision import Decision
from strategies.core.view import View


def account(decision: Decision) -> str:
    """The message of `context_length_exceeded`: every part that cannot be condensed, with its size."""
    policy, view = decision.policy, decision.view
    window = policy.window.tokens or 0
    reserve = (policy.budget.nominal or policy.budget).reserve if policy.budget else 0
    parts = {
        "tools and framing": decision.tools,
        "system messages": view.transcript.system_tokens,
        "the first and the last user message": _users(view),
        "the newest round": _newest_round(view),
    }
    parts["other messages"] = view.tokens - sum(parts.values())
    listed = ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items() if tokens > 0)
    return (
        f"This model's context length is {window:,} tokens (from {policy.window.source}). After condensing, the request"
        f" still has {view.tokens:,} tokens that cannot be condensed: {listed}. Another {reserve:,} are reserved for"
        " the reply. Please shorten these parts."
    )


def _users(view: View) -> int:
    places = {place for place in (view.task, view.last_user) if place is not None}
    return sum(view.items[place].message.tokens for place in places)


def _newest_round(view: View) -> int:
    newest = view.structure.newest_round
    return sum(item.message.tokens for item in view.items[newest.start : newest.end]) if newest else 0
