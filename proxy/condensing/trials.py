"""Trials: now and then a request is sent whole, because the window that was learned may be wrong or out of date."""

from __future__ import annotations

from collections.abc import Callable

from proxy.condensing.case import Case
from proxy.condensing.decision import Decision
from proxy.condensing.policy import requested_reply_length
from proxy.condensing.undecided import undecided
from proxy.learning.proof import Scope
from proxy.reasons import Reason


def trial_of(case: Case, takes_trial: Callable[[Scope], bool]) -> tuple[Decision, Case] | None:
    """The decision to send a request as it came, and the case for that; None if it is no trial.

    A trial is longer than the learned window, and fits the one that was known before.
    """
    window, pipeline = case.policy.window, case.policy.pipeline
    if window.learned_by is None or window.tokens is None or not case.may_store or pipeline.is_off or pipeline.observe:
        return None
    whole = case.as_it_came()
    trial = undecided(whole)
    with_reply = trial.expected_tokens + (requested_reply_length(case.request.body.values) or 0)
    fits = window.before is None or with_reply <= window.before
    if trial.expected_tokens <= window.tokens or not fits or not takes_trial(case.request.scope):
        return None
    return trial._replace(reason=Reason.WINDOW_TRIAL), whole
