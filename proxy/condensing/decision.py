"""The decision on one request: what is forwarded, and why. A decision never changes; another one replaces it.

A decision starts as one to forward the transcript unchanged (`undecided` in `context.py`). If a defect keeps a request
from being taken in, it is forwarded as it came (`last_resort`), with nothing known but the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from proxy.condensing.policy import UNKNOWN, Policy
from proxy.controls import Controls
from proxy.errors import HistoryUnavailable
from proxy.knowledge.anchor import UNCALIBRATED, Calibration
from proxy.reasons import NO_MORE_CONDENSED, Action, Reason, Trigger
from proxy.request.measure import Precision
from proxy.request.wire import ClientRequest
from proxy.searching import NO_OFFER, Offer
from proxy.sessions.session import MAIN, OWN_HEADER, MemoryBlock, printable_id
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, Replayed
from strategies.core.economics import Advice
from strategies.core.messages import Dialect
from strategies.core.pieces import Overlay
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold

MIN_SAVING = 0.01
"""The smallest saving that is reported, as a share of the cost of prompts."""


class Decision(NamedTuple):
    """What is forwarded for one request, and why.

    Fields without a default are known when deciding begins.
    """

    session: str
    """The session's id, as the response header shows it."""
    session_source: str
    """The value of `X-Condenser-Session-Source`: where the session's id comes from."""
    branch: str
    """The name of the branch, without the suffix for its depth."""
    policy: Policy
    view: View
    tokens_before: int
    """Tokens of the transcript, by the tokenizer's own count."""
    tokens_after: int
    """Tokens of the view, by the same count."""
    precision: Precision
    """How these are known."""
    overhead: int
    """Tokens of tools and framing, part of both counts."""
    body: bytes = b""
    """The bytes to forward."""
    applied: Condensation | None = None
    """The condensation that the view applies."""
    floor: int | None = None
    """Tokens that no condensation can remove, if they keep the view from its target or from fitting."""
    calibrated: Calibration = UNCALIBRATED
    """How the upstream is expected to count the view."""
    offer: Offer = NO_OFFER
    """The memory tool, if the view pays for its offer."""
    memory_block: MemoryBlock = MemoryBlock()
    """The memory block that was chosen for this turn."""
    advice: Advice | None = None
    """Where condensing is cheapest for this session."""
    memory_patch: Overlay | None = None
    """A memory block that this view has first, and that stays at its place in later views."""
    action: Action = Action.PASSED
    reason: str = ""
    trigger: Trigger = Trigger.NONE
    was_prepared: bool = False
    """Whether the condensation came from a preparation; else it was made for this request."""
    metadata: Mapping[str, Any] = MappingProxyType({})
    """The strategies' account of the plan: stages, reasons, and figures of their own."""
    warnings: tuple[str, ...] = ()
    """What the client should know of its own headers and values."""
    own_tokens: int = 0
    """Tokens of our own model calls for this request."""
    append_head: str = ""
    """In append mode, the head of the stored history once the upstream has accepted the request."""
    append_head_before: str = ""
    """The head of the stored history until then."""
    probed: bool = False
    """Whether the body asks for the usage of a stream that the client did not ask for."""

    def with_view(self, view: View) -> Decision:
        return self._replace(view=view, tokens_after=view.tokens)

    def with_loss_told(self) -> Decision:
        """The decision with the reason that reasoning is left out, if this request began that or is not replayed."""
        is_news = self.action in (Action.CONDENSED, Action.PASSED) and self.reason in (
            *NO_MORE_CONDENSED,
            Reason.STRATEGY_OFF,
        )
        return self._replace(reason=Reason.REASONING_DROPPED) if is_news and self.view.drops_reasoning else self

    @property
    def forwarded_tokens(self) -> int:
        """Tokens of what is forwarded, by the tokenizer's own count; under `observe:` that is the transcript."""
        return self.tokens_before if self.action is Action.WOULD_CONDENSE else self.tokens_after

    @property
    def tokens_saved(self) -> int:
        """Tokens that the view saves, compared with the client's own list, by the upstream's count."""
        return round(self.calibrated.scale.slope * (self.tokens_before - self.forwarded_tokens))

    @property
    def stages(self) -> str:
        """The stages that shaped the applied condensation, in order; under `observe:` those that would shape it."""
        return "+".join(self.metadata.get("stages", ()))

    @property
    def expected_tokens(self) -> int:
        """Tokens that the upstream is expected to count for the view, which under `observe:` is not sent."""
        if self.tokens_after != self.view.tokens:
            return self.calibrated.scale.upstream(self.tokens_after)
        return self.calibrated.expected(self.view, self.applied.id if self.applied else "")

    @property
    def headroom(self) -> int | None:
        """The headroom of the view in tokens of the upstream; None if the window is unknown."""
        budget, window = self.policy.budget, self.policy.window.tokens
        return None if budget is None or window is None else budget.unscaled.headroom(self.expected_tokens)

    @property
    def all_own_tokens(self) -> int:
        """Tokens of our own model calls for this request, and for the preparation that it took."""
        return self.own_tokens + (self.applied.own_tokens if self.was_prepared and self.applied else 0)

    @property
    def economy(self) -> Advice | None:
        """The advice, if following it would save enough to be reported."""
        return self.advice if self.advice is not None and self.advice.saves >= MIN_SAVING else None

    @property
    def base(self) -> Replayed:
        """The view that the next condensation starts from, and the condensation in it."""
        return Replayed(self.view, self.applied)

    @property
    def depth(self) -> int:
        """How many condensations are in the view."""
        return self.applied.depth if self.applied else 0


class _Uncounted:
    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def text(self, text: str) -> int:
        return 0

    def message(self, body: Mapping[str, object]) -> int:
        return 0


def last_resort(request: ClientRequest) -> Decision:
    """The decision to forward a request as it came; nothing of it is stored.

    Raises `HistoryUnavailable` in append mode, because the client has sent only the end of its conversation.
    """
    if request.controls.append:
        raise HistoryUnavailable("The stored history cannot be supplied now (internal-error).")
    session = request.controls.session
    return Decision(
        session=printable_id(session) if session else UNKNOWN,
        session_source=OWN_HEADER if session else UNKNOWN,
        branch=MAIN,
        policy=Policy(),
        view=fold(Transcript(()), (), 0, _Uncounted(request.body.endpoint.dialect)),
        tokens_before=0,
        tokens_after=0,
        precision=Precision.ESTIMATE,
        overhead=0,
        body=request.body.spliced(model=request.model if request.has_suffix else None),
        action=Action.DEGRADED,
        reason=Reason.INTERNAL_ERROR,
        warnings=request.controls.warnings,
    )


OPTION_BOUNDS: Mapping[str, tuple[str, Callable[[Budget], int]]] = {
    "summary_max_tokens": ("a tenth of the window", lambda budget: budget.replacement_cap),
    "max_tokens": ("a tenth of the window", lambda budget: budget.replacement_cap),
    "memory_max_tokens": ("a sixteenth of the window", lambda budget: budget.window // 16),
}
"""Options in tokens that the budget bounds, and by what."""


def clamped_values(controls: Controls, policy: Policy) -> Iterator[str]:
    """Yields a sentence for each option in the request that the budget clamps."""
    budget = policy.budget and policy.budget.unscaled
    for stage in policy.stages if budget else ():
        for name, (bound, most) in OPTION_BOUNDS.items():
            value = getattr(getattr(stage, "options", None), name, 0)
            if budget and most(budget) < value and {name, f"{stage.name}.{name}"} & controls.options.keys():
                yield f"{stage.name}.{name} of {value:,} is clamped to {most(budget):,}: {bound}"
