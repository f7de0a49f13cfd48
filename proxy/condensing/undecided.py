"""Decisions to start from: that of a case before anything is decided, and that of a request that a defect keeps from
becoming a case.

The second is the last resort: it knows nothing but the request, and forwards it as it came.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.condensing.case import Case
from proxy.condensing.clamping import clamped_values
from proxy.condensing.decision import Decision
from proxy.condensing.policy import OFF, UNKNOWN, Policy, Window
from proxy.errors import HistoryUnavailable
from proxy.reasons import Action, Reason
from proxy.request.chat import ChatRequest
from proxy.request.controls import MEMORY
from proxy.sessions.identity import OWN_HEADER, printable_id
from proxy.sessions.session import MAIN
from proxy.settings.tables import JudgeRole, SummarizerRole
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
        warnings=(*case.request.controls.warnings, *clamped_values(case.request.controls, case.policy)),
    )


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
