"""Decisions before anything was decided: that of a case, and that of a request which a defect has kept from being one.

The second is the last resort. It knows nothing but the request, and forwards it as it came.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.condensing.decision import Action, Decision
from proxy.condensing.policy import UNKNOWN, Policy, Window
from proxy.errors import HistoryUnavailable
from proxy.reasons import Reason
from proxy.request.controls import MEMORY
from proxy.request.identity import OWN, shown
from proxy.request.intake import Case, ChatRequest
from proxy.sessions.session import MAIN
from proxy.settings.tables import JudgeRole, SummarizerRole
from strategies import Pipeline
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
    """The transcript as it is; where the store has failed, that is told."""
    found, measured = case.recognised, case.measured
    decision = Decision(
        session=found.shown,
        source=found.identity.source,
        branch=MAIN,
        policy=case.policy,
        view=folded(case, None),
        tokens_before=measured.tokens,
        tokens_after=measured.tokens,
        exact=measured.exact,
        tools=measured.overhead,
        calibrated=case.calibrated,
        standing=case.append.standing if case.append else "",
    )
    if found.failure:
        decision.action, decision.reason = Action.DEGRADED, found.failure
    return decision


def folded(case: Case, condensation: Condensation | None) -> View:
    """The view of a case with a condensation, or with none."""
    overlays = () if condensation is None else (condensation.overlay,)
    return fold(case.measured.transcript, overlays, case.overhead, case.counter)


def as_it_came(request: ChatRequest) -> Decision:
    """The request itself, which nothing is known of and nothing is stored of.

    Raises `HistoryUnavailable` in append mode: what the client sent is only the end of its conversation.
    """
    if request.controls.append:
        raise HistoryUnavailable("The stored history cannot be supplied now (internal-error).")
    session = request.controls.session
    return Decision(
        session=shown(session) if session else UNKNOWN,
        source=OWN if session else UNKNOWN,
        branch=MAIN,
        policy=_nothing(),
        view=fold(Transcript(()), (), 0, _Uncounted()),
        tokens_before=0,
        tokens_after=0,
        exact=False,
        tools=0,
        body=request.body.spliced(model=request.model if request.renamed else None),
        action=Action.DEGRADED,
        reason=Reason.INTERNAL_ERROR,
    )


def _nothing() -> Policy:
    """A policy under which nothing is done."""
    return Policy(
        pipeline=Pipeline(("off",)),
        stages=[],
        ladder=[],
        window=Window(None, UNKNOWN),
        budget=None,
        summarizer=SummarizerRole(),
        judge=JudgeRole(),
        sticks={},
        memory=MEMORY["off"],
        background="off",
    )
