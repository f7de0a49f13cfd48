"""The message of our own `context_length_exceeded`: where the tokens are, so that its reader knows what to shorten."""

from __future__ import annotations

from proxy.condensing.decision import Decision
from proxy.condensing.policy import REQUEST, Window
from proxy.errors import ContextLengthExceeded
from proxy.learning.learned_windows import Origin
from strategies.core.view import View

_LEARNED = {
    Origin.OVERFLOW: "as the upstream said when it refused a longer prompt",
    Origin.GUESS: "guessed when the upstream refused a longer prompt",
    Origin.TRUNCATION: "learned when the upstream read only a part of a longer prompt",
}


def account(decision: Decision) -> str:
    """The message for a request that is too large: each part that cannot be condensed, with its tokens."""
    policy, view = decision.policy, decision.view
    window = policy.window.tokens or 0
    reserve = (policy.budget.nominal or policy.budget).reserve if policy.budget else 0
    parts = {
        "tools and framing": decision.overhead,
        "system messages": view.transcript.system_tokens,
        "the first and the last user message": _users(view),
        "the newest round": _newest_round(view),
    }
    parts["other messages"] = view.tokens - sum(parts.values())
    listed = ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items() if tokens > 0)
    return (
        f"This model's context length is {window:,} tokens ({_origin(policy.window)}). After condensing, the request"
        f" still has {view.tokens:,} tokens that cannot be condensed: {listed}. Another {reserve:,} are reserved for"
        " the reply. Please shorten these parts."
    )


def _origin(window: Window) -> str:
    """Where the window is known from, as a user would say it."""
    if window.learned_by is not None:
        return _LEARNED[window.learned_by]
    if window.source == REQUEST:
        return "from this request's X-Condenser-Window header or condenser.window member"
    return window.source if window.source.startswith("stated") else f"from the {window.source}"


def _users(view: View) -> int:
    indices = {index for index in (view.task, view.last_user) if index is not None}
    return sum(view.items[index].message.tokens for index in indices)


def _newest_round(view: View) -> int:
    newest = view.structure.newest_round
    return sum(item.message.tokens for item in view.items[newest.start : newest.end]) if newest else 0


EXACT_ERROR, ESTIMATE_ERROR = 0.10, 0.25
"""The share by which an exact and an estimated count may be wrong, where calibration has not measured it."""


def refuse_if_hopeless(decision: Decision) -> None:
    """Raises `ContextLengthExceeded` if what is left exceeds the window by more than the count may be wrong."""
    budget = decision.policy.budget
    if budget is None:
        return
    most = EXACT_ERROR if decision.exact else ESTIMATE_ERROR
    error = most if decision.calibrated.error is None else min(decision.calibrated.error, most)
    if decision.view.tokens > budget.window * (1 + error):
        raise ContextLengthExceeded(account(decision), param="messages")
