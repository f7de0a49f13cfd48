"""The decision for one request, and its three accounts: response headers, a log line, and the JSON of a dry run."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from proxy.calibration.anchor import Anchor
from proxy.calibration.scaling import UNCALIBRATED, Calibration
from proxy.condensing.policy import Policy
from proxy.learning.profiles import Profile
from proxy.memory.rounds import Rounds
from proxy.quoting import label
from proxy.reply.usage import Usage
from proxy.request.identity import MOST_SHOWN
from proxy.sessions.branch import NO_MEMORY_BLOCK, MemoryBlock
from proxy.sessions.session import with_depth
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, Kind, Literal
from strategies.core.view import View


class Action(StrEnum):
    """The kind of view that is forwarded, as `X-Condenser-Action` says it."""

    PASSED = "passed"
    REPLAYED = "replayed"
    CONDENSED = "condensed"
    WOULD_CONDENSE = "would-condense"
    BYPASSED = "bypassed"
    PENDING = "pending"
    DEGRADED = "degraded"


class Trigger(StrEnum):
    """Why the view was condensed, as `X-Condenser-Trigger` says it."""

    NONE = "none"
    JUDGE = "judge"
    THRESHOLD = "threshold"
    CONTEXT_LIMIT = "context_limit"
    OVERFLOW = "overflow"
    FORCED = "forced"


def trigger_of(condensation: Condensation) -> Trigger:
    """The trigger that a condensation was made for; one that only a newer version knows counts as THRESHOLD."""
    known = condensation.trigger in set(Trigger)
    return Trigger(condensation.trigger) if known else Trigger.THRESHOLD


@dataclass(slots=True)
class Timing:
    """Milliseconds of each part of the work, as `Server-Timing` gives them."""

    session: float = 0.0
    count: float = 0.0
    condense: float = 0.0
    upstream: float = 0.0

    def header(self) -> str:
        """The value of `Server-Timing`."""
        ours = f"session;dur={self.session:.2f}, count;dur={self.count:.2f}, condense;dur={self.condense:.2f}"
        return f"{ours}, upstream;dur={self.upstream:.2f}"

    @property
    def ours(self) -> float:
        """Milliseconds that we added before forwarding."""
        return self.session + self.count + self.condense


@dataclass(slots=True)
class Decision:
    """The decision for one request: the view, the bytes to forward, and callbacks for the outcome.

    Fields without a default are known when deciding begins. The others are filled in while the request is decided on,
    sent, and answered.
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
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The strategies' account of the plan: stages, reasons, and figures of their own."""
    warnings: tuple[str, ...] = ()
    """What the client should know of its own headers and values."""
    own_tokens: int = 0
    """Tokens of our own model calls for this request."""
    timing: Timing = field(default_factory=Timing)

    # -- append mode

    head: str = ""
    """The head of the stored history once the upstream has accepted the request."""
    head_before: str = ""
    """The head of the stored history until then."""

    # -- how it is sent

    probed: bool = False
    """Whether the body asks for the usage of a stream that the client did not ask for."""
    wants_unencoded: bool = False
    """Whether the upstream must reply without a content encoding."""
    hidden_rounds: Rounds | None = None
    """The hidden rounds that may follow; None if the model is offered no memory tool."""

    # -- callbacks

    retry_smaller: Callable[[Policy, Budget], Awaitable[Decision | None]] | None = None
    """Decides anew, by this policy and budget, when the upstream has refused the view for its length.

    The callback returns None if nothing smaller can be sent.
    """
    original: Callable[[], Decision | None] | None = None
    """The decision to send the request as it came, when the upstream has refused what was made of it.

    The callback returns None if that is the same, or does not fit.
    """
    rewrite_for: Callable[[Profile], bool] | None = None
    """Rewrites the view for another profile, and returns whether the bytes have changed."""
    learn: Callable[[Usage], None] | None = None
    """Takes in the upstream's usage; called before `settle`. Sets `usage` and `anchor`."""
    settle: Callable[[Mapping[str, Any] | None], Awaitable[None]] | None = None
    """Stores what later requests need. Its argument is the reply as a message, which append mode stores too."""
    follow_up: Callable[[], None] | None = None
    """Starts the work that is due once the reply has been sent."""

    # -- what the reply has shown

    usage: Usage | None = None
    anchor: Anchor | None = None
    """The anchor that the next request of this branch starts from."""
    reply_ending: str = ""
    """The digest of how the reply's text ends, for a session that may be found by that."""

    def drop_callbacks(self) -> None:
        """Drops the callbacks when the request is over.

        They hold the decision itself, and with it the whole request; otherwise only the garbage collector would free
        them.
        """
        self.settle = self.follow_up = self.retry_smaller = self.original = self.rewrite_for = self.learn = None
        if self.hidden_rounds is not None:
            self.hidden_rounds.drop_callbacks()

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

    def headers(self, *, accepted: bool = True) -> list[tuple[str, str]]:
        """The `X-Condenser-*` and `Server-Timing` headers; `accepted` tells if the upstream accepted the request."""
        head = self.head if accepted else self.head_before
        pairs = [
            ("X-Condenser-Session", self.session),
            ("X-Condenser-Session-Source", self.session_source),
            ("X-Condenser-Strategy", str(self.policy.pipeline)),
            ("X-Condenser-Action", self.action),
            ("X-Condenser-Trigger", self.trigger),
            ("X-Condenser-Branch", with_depth(self.branch, self.depth)),
            ("X-Condenser-Tokens-Before", str(self.tokens_before)),
            ("X-Condenser-Tokens-After", str(self.tokens_after)),
            ("X-Condenser-Count", "exact" if self.exact else "estimate"),
            ("X-Condenser-Window", str(self.policy.window)),
            ("Server-Timing", self.timing.header()),
        ]
        if self.reason:
            pairs.append(("X-Condenser-Reason", self.reason))
        if self.floor is not None:
            pairs.append(("X-Condenser-Floor", str(self.floor)))
        if self.stages:
            pairs.append(("X-Condenser-Stages", self.stages))
        if self.warnings:
            pairs.append(("X-Condenser-Warning", "; ".join(self.warnings)))
        if head:
            pairs.append(("X-Condenser-Head", head))
        if self.applied is not None:
            pairs.append(("X-Condenser-Condensation", self.applied.id))
        if (headroom := self.headroom) is not None:
            pairs.append(("X-Condenser-Headroom", str(headroom)))
        return pairs

    def log_line(self) -> str:
        """What the log tells a person of this request, without content or credentials."""
        window = self.policy.window.tokens
        done = self._action_phrase(), self._prepared_phrase(), self.reason, f"+{self.timing.ours:.0f} ms"
        parts = [
            label(self.session, MOST_SHOWN),
            with_depth(self.branch, self.depth),
            str(self.policy.pipeline),
            f"{short(self.tokens_before)}→{short(self.tokens_after)} of {short(window) if window else 'unknown'}",
            f"(tools {short(self.overhead)}{f', floor {short(self.floor)}' if self.floor is not None else ''})",
            ", ".join(filter(None, done)),
        ]
        own = self.all_own_tokens
        return " ".join(parts) + (f", own {short(own)} tok" if own else "")

    def _action_phrase(self) -> str:
        """The action; for a condensation that this request made or took, its trigger."""
        if self.trigger is Trigger.NONE:
            return str(self.action)
        return str(self.trigger) if self.action is Action.CONDENSED else f"{self.action} by {self.trigger}"

    def _prepared_phrase(self) -> str:
        if not self.was_prepared or self.applied is None:
            return ""
        kinds = {each.kind for each in self.applied.pieces if isinstance(each, Literal)}
        return "summary ready" if Kind.REPLACEMENT in kinds else "ready"

    def dry_run(self) -> bytes:
        """The plan and the view as JSON."""
        document = {
            "object": "condenser.dry_run",
            "action": self.action,
            "reason": self.reason or None,
            "trigger": self.trigger,
            "session": self.session,
            "session_source": self.session_source,
            "branch": with_depth(self.branch, self.depth),
            "strategy": str(self.policy.pipeline),
            "window": self.policy.window.tokens,
            "window_source": self.policy.window.source,
            "budget": budget_document(self.policy),
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "floor": self.floor,
            "upstream_tokens": self.expected_tokens,
            "headroom": self.headroom,
            "plan": dict(self.metadata),
            "messages": [message.body for message in self.view.messages],
        }
        return json.dumps(document, ensure_ascii=True).encode()


def budget_document(policy: Policy) -> dict[str, int] | None:
    """The effective numbers of a budget, in tokens of the upstream."""
    if policy.budget is None:
        return None
    names = ("reserve", "usable", "prepare", "trigger", "target", "step", "least_headroom")
    return {name: getattr(policy.budget.unscaled, name) for name in names}


def short(tokens: int) -> str:
    """27,912 as `27.9k`."""
    return f"{tokens / 1000:.1f}k" if tokens >= 1000 else str(tokens)
