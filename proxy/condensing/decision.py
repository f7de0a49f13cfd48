"""What was decided for one request, and how it is said: in headers, in a log line, as a dry run."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from proxy.calibration.anchor import Anchor
from proxy.calibration.scaling import UNCALIBRATED, Calibrated
from proxy.condensing.policy import Policy
from proxy.learning.profiles import Profile
from proxy.memory.rounds import Rounds
from proxy.reasons import Reason
from proxy.reply.usage import Usage
from proxy.sessions.session import NO_MEMORY_BLOCK, MemoryBlock, with_depth
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, Kind, Literal
from strategies.core.transcript import Role
from strategies.core.view import View

REASONING = (b'"reasoning', b'"thinking', b"<think", b"u003cthink")
"""What tells of reasoning in the bytes of a message: members that servers name so, and marks in its text."""


class Action(StrEnum):
    """What this request's view is."""

    PASSED = "passed"
    REPLAYED = "replayed"
    CONDENSED = "condensed"
    WOULD_CONDENSE = "would-condense"
    BYPASSED = "bypassed"
    PENDING = "pending"
    DEGRADED = "degraded"


class Trigger(StrEnum):
    """What made us condense."""

    NONE = "none"
    JUDGE = "judge"
    THRESHOLD = "threshold"
    CONTEXT_LIMIT = "context_limit"
    OVERFLOW = "overflow"
    FORCED = "forced"


def trigger_of(condensation: Condensation) -> Trigger:
    """What a condensation was made for; one of a newer version may name a trigger that this one does not know."""
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
    """The outcome for one request. `body` are the bytes to forward; `settle` stores what later ones need.

    It is handed the reply as a message where append mode must store that too. `follow` starts what is due once the
    reply has been sent. `again` decides anew, under a policy and by a budget, where the upstream has refused the view
    for its length; it gives None where nothing smaller can be sent. `reform` writes it for an upstream with another
    profile, and says whether other bytes came of that. `learn` is called with the usage that came back,
    before `settle`, and told whether that is suspect; it leaves `usage` and `anchor` for the session. `reply` is how
    the reply's text ends, where the session may be found by that. `probed` tells that the body asks for a usage which
    the client has not asked for, `unpacked` that the reply must come without an encoding. `floor` are the tokens that
    no condensation can take away, where that is worth telling. `rounds` are the hidden ones that may follow; None where
    the model is offered no memory tool. `ready` tells that what was applied had been prepared. In append mode `head` is
    what the history ends with once the upstream has taken the request, and `standing` what it ends with until then.
    """

    session: str
    source: str
    branch: str
    policy: Policy
    view: View
    tokens_before: int
    tokens_after: int
    exact: bool
    tools: int
    body: bytes = b""
    action: Action = Action.PASSED
    reason: str = ""
    trigger: Trigger = Trigger.NONE
    applied: Condensation | None = None
    own_tokens: int = 0
    timing: Timing = field(default_factory=Timing)
    head: str = ""
    settle: Callable[[Mapping[str, Any] | None], Awaitable[None]] | None = None
    follow: Callable[[], None] | None = None
    block: MemoryBlock = NO_MEMORY_BLOCK
    again: Callable[[Policy, Budget], Awaitable[Decision | None]] | None = None
    reform: Callable[[Profile], bool] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    calibrated: Calibrated = UNCALIBRATED
    learn: Callable[[Usage, bool], None] | None = None
    usage: Usage | None = None
    anchor: Anchor | None = None
    reply: str = ""
    probed: bool = False
    unpacked: bool = False
    floor: int | None = None
    rounds: Rounds | None = None
    ready: bool = False
    standing: str = ""

    def let_go(self) -> None:
        """Forgets what it could still do, when its request is over.

        Those hold the decision itself, and so the whole request: nothing but a collection of garbage would free it.
        """
        self.settle = self.follow = self.again = self.reform = self.learn = None

    @property
    def left_out(self) -> int:
        """What the client's own list would have cost more than the view, in tokens of the upstream."""
        return round(self.calibrated.scale.slope * (self.tokens_before - self.tokens_after))

    @property
    def upstream_least(self) -> int:
        """The least that the upstream should count for the view: nothing is in it that is only guessed to be added."""
        expected = self.calibrated.scale.upstream(self.view.tokens)
        return expected if self.upstream_prefix is not None else min(expected, self.view.tokens)

    @property
    def upstream_prefix(self) -> int | None:
        """What the upstream itself has counted for the beginning of this view; None where that is not known."""
        return self.calibrated.begun_with(self.applied.id if self.applied else "", self.view.tokens)

    @property
    def shows_reasoning(self) -> bool:
        """Whether the view has reasoning of the assistant's, which templates leave out once a turn is over."""
        said = [message.data for message in self.view.shown if message.role is Role.ASSISTANT]
        return any(mark in data for data in said for mark in REASONING)

    @property
    def changed(self) -> bool:
        """Whether this request's view is something a person should hear of."""
        return self.action not in (Action.PASSED, Action.BYPASSED) or self.reason == Reason.ALIGNED

    @property
    def depth(self) -> int:
        """How many condensations are in the view."""
        return self.applied.depth if self.applied else 0

    def headers(self, *, taken: bool = True) -> list[tuple[str, str]]:
        """The response headers of the design; `taken` tells whether the upstream has taken the request."""
        head = self.head if taken else self.standing
        pairs = [
            ("X-Condenser-Session", self.session),
            ("X-Condenser-Session-Source", self.source),
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
        if head:
            pairs.append(("X-Condenser-Head", head))
        if self.applied is not None:
            pairs.append(("X-Condenser-Condensation", self.applied.id))
        if self.policy.budget is not None:
            pairs.append(("X-Condenser-Headroom", str(self.policy.budget.upstream_headroom(self.tokens_after))))
        return pairs

    def line(self) -> str:
        """One line that tells a person what happened; no content, no credential."""
        window = self.policy.window.tokens
        done = self._what(), self._found_ready(), self.reason, f"+{self.timing.ours:.0f} ms"
        parts = [
            self.session[-4:],
            with_depth(self.branch, self.depth),
            str(self.policy.pipeline),
            f"{short(self.tokens_before)}→{short(self.tokens_after)} of {short(window) if window else 'unknown'}",
            f"(tools {short(self.tools)}{f', floor {short(self.floor)}' if self.floor is not None else ''})",
            ", ".join(filter(None, done)),
        ]
        before = self.applied.own_tokens if self.ready and self.applied else 0
        own = self.own_tokens + before
        return " ".join(parts) + (f", own {short(own)} tok" if own else "")

    def _what(self) -> str:
        """What was done, or for a condensation that was made or taken now, why."""
        if self.trigger is Trigger.NONE:
            return str(self.action)
        return str(self.trigger) if self.action is Action.CONDENSED else f"{self.action} by {self.trigger}"

    def _found_ready(self) -> str:
        if not self.ready or self.applied is None:
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
            "session_source": self.source,
            "branch": with_depth(self.branch, self.depth),
            "strategy": str(self.policy.pipeline),
            "window": self.policy.window.tokens,
            "window_source": self.policy.window.source,
            "budget": budget_document(self.policy),
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "floor": self.floor,
            "upstream_tokens": self.calibrated.scale.upstream(self.tokens_after),
            "headroom": self.policy.budget.upstream_headroom(self.tokens_after) if self.policy.budget else None,
            "plan": dict(self.metadata),
            "messages": [message.body for message in self.view.messages()],
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
