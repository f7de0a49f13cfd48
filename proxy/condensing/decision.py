"""The decision on one request: what is forwarded, and why. A decision never changes; another one replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from proxy.calibration.scaling import UNCALIBRATED, Calibration
from proxy.condensing.policy import Policy
from proxy.reasons import Action, Trigger
from proxy.sessions.branch import NO_MEMORY_BLOCK, MemoryBlock
from strategies.core.condensation import Condensation
from strategies.core.view import View


def trigger_of(condensation: Condensation) -> Trigger:
    """The trigger that a condensation was made for; one that only a newer version knows counts as THRESHOLD."""
    known = condensation.trigger in set(Trigger)
    return Trigger(condensation.trigger) if known else Trigger.THRESHOLD


class Decision(NamedTuple):
    """What is forwarded for one request, and why.

    Fields without a default are known when deciding begins.
    """

    # -- the session and the policy

    session: str
    """The session's id, as the response header shows it."""
    session_source: str
    """Where the session's id comes from, as `X-Condenser-Session-Source` says it."""
    branch: str
    """The name of the branch, without the suffix for its depth."""
    policy: Policy

    # -- the view

    view: View
    tokens_before: int
    """Tokens of the transcript, by the tokenizer's own count."""
    tokens_after: int
    """Tokens of the view, by the same count."""
    exact: bool
    """Whether these are counts, not estimates."""
    overhead: int
    """Tokens of tools and framing, part of both counts."""
    body: bytes = b""
    """The bytes to forward."""
    applied: Condensation | None = None
    """The condensation that the view applies."""
    floor: int | None = None
    """Tokens that no condensation can take away, if they keep the view from its target or from fitting."""
    calibrated: Calibration = UNCALIBRATED
    """How the upstream is expected to count the view."""
    memory_block: MemoryBlock = NO_MEMORY_BLOCK
    """The memory block in the view."""

    # -- what was done

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

    # -- append mode

    head: str = ""
    """The head of the stored history once the upstream has accepted the request."""
    head_before: str = ""
    """The head of the stored history until then."""

    # -- how it is sent

    probed: bool = False
    """Whether the body asks for the usage of a stream that the client did not ask for."""

    @property
    def forwarded_tokens(self) -> int:
        """Tokens of what is forwarded, by the tokenizer's own count; under `observe:` that is the transcript."""
        return self.tokens_before if self.action is Action.WOULD_CONDENSE else self.tokens_after

    @property
    def tokens_saved(self) -> int:
        """Tokens of the upstream that the view saves over the client's own list."""
        return round(self.calibrated.scale.slope * (self.tokens_before - self.forwarded_tokens))

    @property
    def stages(self) -> str:
        """The stages that shaped the applied condensation, in order; under `observe:` those that would shape it."""
        return "+".join(self.metadata.get("stages", ()))

    @property
    def expected_tokens(self) -> int:
        """Tokens that the upstream is expected to count for the view; under `observe:` for what it would be."""
        if self.tokens_after != self.view.tokens:
            return self.calibrated.scale.upstream(self.tokens_after)
        return self.calibrated.expected(self.view, self.applied.id if self.applied else "")

    @property
    def headroom(self) -> int | None:
        """The headroom of the view in tokens of the upstream; None if the window is unknown."""
        budget = self.policy.budget
        return None if budget is None else budget.unscaled.headroom(self.expected_tokens)

    @property
    def all_own_tokens(self) -> int:
        """Tokens of our own model calls for this request, and for the preparation that it took."""
        return self.own_tokens + (self.applied.own_tokens if self.was_prepared and self.applied else 0)

    @property
    def depth(self) -> int:
        """How many condensations are in the view."""
        return self.applied.depth if self.applied else 0
