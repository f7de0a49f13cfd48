"""Decisions to start from: that of a case before anything is decided, and that of a request that a defect keeps from
becoming a case.

The second is the last resort: it knows nothing but the request, and forwards it as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from proxy.condensing.case import Case
from proxy.condensing.decision import Decision
from proxy.condensing.policy import OFF, UNKNOWN, Policy, Window, requested_reply_length
from proxy.errors import HistoryUnavailable
from proxy.learning.proof import Scope
from proxy.reasons import Action, Reason
from proxy.request.chat import ChatRequest
from proxy.request.controls import MEMORY, Controls
from proxy.sessions.identity import OWN_HEADER, printable_id
from proxy.sessions.session import MAIN
from proxy.settings.tables import JudgeRole, SummarizerRole
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold


class _Uncounted:
    """Counts nothing."""

    def text(self, text: str) -> int:
        """No tokens."""
        return 0

    def message(self, body: Mapping[str, object]) -> int:
        """No tokens."""
        return 0


def undecided(case: Case) -> Decision:
    """The decision to forward the transcript as it is; if the store has failed, it says so."""
    found, measured = case.recognised, case.measured
    return Decision(
        session=found.shown_id,
        session_source=found.identity.source,
        branch=MAIN,
        policy=case.policy,
        view=fold_view(case, None),
        tokens_before=measured.tokens,
        tokens_after=measured.tokens,
        exact=measured.exact,
        overhead=measured.overhead,
        calibrated=case.calibrated,
        action=Action.DEGRADED if found.failure else Action.PASSED,
        reason=found.failure,
        head_before=case.append.current_head if case.append else "",
        warnings=_warnings(case),
    )


def _warnings(case: Case) -> tuple[str, ...]:
    controls = case.request.controls
    asks = controls.window is not None or controls.options
    return (*controls.warnings, *clamped_values(controls, case.policy)) if asks else controls.warnings


def fold_view(case: Case, condensation: Condensation | None) -> View:
    """The view of a case with a condensation, or with none."""
    overlays = () if condensation is None else (condensation.overlay,)
    return fold(case.measured.transcript, overlays, case.overhead, case.counter)


def as_it_came(request: ChatRequest) -> Decision:
    """The decision to forward a request as it came; nothing of it is stored.

    Raises `HistoryUnavailable` in append mode, where the client has sent only the end of its conversation.
    """
    if request.controls.append:
        raise HistoryUnavailable("The stored history cannot be supplied now (internal-error).")
    session = request.controls.session
    return Decision(
        session=printable_id(session) if session else UNKNOWN,
        session_source=OWN_HEADER if session else UNKNOWN,
        branch=MAIN,
        policy=_idle_policy(),
        view=fold(Transcript(()), (), 0, _Uncounted()),
        tokens_before=0,
        tokens_after=0,
        exact=False,
        overhead=0,
        body=request.body.spliced(model=request.model if request.has_suffix else None),
        action=Action.DEGRADED,
        reason=Reason.INTERNAL_ERROR,
        warnings=request.controls.warnings,
    )


def _idle_policy() -> Policy:
    """A policy that does nothing."""
    return Policy(
        pipeline=OFF,
        stages=[],
        ladder=[],
        window=Window(None, UNKNOWN),
        budget=None,
        summarizer=SummarizerRole(),
        judge=JudgeRole(),
        session_settings={},
        memory=MEMORY["off"],
        background="off",
    )


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


OPTION_BOUNDS: Mapping[str, tuple[str, Callable[[Budget], int]]] = {
    "summary_max_tokens": ("a tenth of the window", lambda budget: budget.replacement_cap),
    "max_tokens": ("a tenth of the window", lambda budget: budget.replacement_cap),
    "memory_max_tokens": ("a sixteenth of the window", lambda budget: budget.window // 16),
}
"""Options in tokens that the budget bounds, and by what."""


def clamped_values(controls: Controls, policy: Policy) -> Iterator[str]:
    """Yields a sentence for each value of a request that a learned window or the budget clamps."""
    used, asked = policy.window.tokens, controls.window
    if used is not None and asked is not None and used < asked:
        yield f"the window of {asked:,} tokens is clamped to {used:,}: {policy.window.source}"
    budget = policy.budget and policy.budget.unscaled
    for stage in policy.stages if budget else ():
        for name, (bound, most) in OPTION_BOUNDS.items():
            value = getattr(getattr(stage, "options", None), name, 0)
            if budget and most(budget) < value and {name, f"{stage.name}.{name}"} & controls.options.keys():
                yield f"{stage.name}.{name} of {value:,} is clamped to {most(budget):,}: {bound}"
