"""The closed list of values of `X-Condenser-Reason`. `docs/reference/reasons.md` has a heading for each.

A request has one reason. A reason that merely says why nothing was condensed, or no more than before, gives way to
one that tells the client something about its request. The last two sets of reasons hold those that give way.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why the proxy did what `X-Condenser-Action` says, or did not do more."""

    BELOW_MARKS = "below-marks"
    ALIGNED = "aligned"
    NEW_BRANCH = "new-branch"
    CLIENT_COMPACTION = "client-compaction"
    STRATEGY_OFF = "strategy-off"
    WINDOW_UNKNOWN = "window-unknown"
    WAITING_FOR_STEP = "waiting-for-step"
    REVERTED = "reverted"
    NOT_PREPARED = "not-prepared"
    AWAITING_VERDICT = "awaiting-verdict"
    NO_VERDICT = "no-verdict"
    NO_PROGRESS = "no-progress"
    NO_ROOM = "no-room"
    SUMMARY_BOUNDARY = "summary-boundary"
    FLOOR = "floor"
    IRREDUCIBLE = "irreducible"
    REASONING_DROPPED = "reasoning-dropped"
    REWRITE_REFUSED = "rewrite-refused"
    COMPACTION_REFUSED = "compaction-refused"
    MEMORY_TOOL_TAKEN = "memory-tool-taken"
    MEMORY_TOOL_REFUSED = "memory-tool-refused"
    MEMORY_TOOL_NOT_RUN = "memory-tool-not-run"
    NOT_CONDENSED_ENDPOINT = "not-condensed-endpoint"
    SERVER_STATE = "server-state"
    UNRESOLVED_REFERENCE = "unresolved-reference"
    SIGNED_BODY = "signed-body"
    ENCODED_BODY = "encoded-body"
    UNREADABLE_BODY = "unreadable-body"
    CREDENTIAL_UNPROVEN = "credential-unproven"
    INTERNAL_ERROR = "internal-error"


REASONS = frozenset(  # all reasons: also those that strategies, calls of models and stores give as text
    (
        *Reason,
        *("nothing-to-condense", "nothing-to-drop", "nothing-to-mask", "nothing-to-extract", "nothing-to-shorten"),
        *("nothing-to-summarize",),
        *("summary-unreachable", "summary-rate-limited", "summary-http-error", "summary-paused", "summary-expired"),
        *("summary-not-accepted", "summary-over-budget", "summary-shared-cache", "summary-unreadable"),
        *("summary-timeout", "summary-called-tools"),
        *("summary-cut-short", "summary-not-finished", "summary-empty", "summary-too-long", "summary-refused"),
        *("summary-echo", "summary-not-smaller", "summary-untagged", "summary-not-prose"),
        *("no-compaction", "compaction-timeout", "compaction-unreachable", "compaction-rate-limited"),
        *("compaction-http-error", "compaction-paused", "compaction-expired", "compaction-not-accepted"),
        *("compaction-over-budget", "compaction-unreadable", "compaction-empty"),
        *(
            "invalid-plan",
            "store-busy",
            "store-closed",
            "store-contended",
            "store-corrupt",
            "store-error",
            "store-evicts",
        ),
        *("store-full", "store-key", "store-loading", "store-quota", "store-read-only", "store-refused"),
        *("store-schema", "store-timeout", "store-unavailable"),
    )
)
NOTHING_CONDENSED = frozenset({"", Reason.BELOW_MARKS, Reason.WAITING_FOR_STEP, Reason.WINDOW_UNKNOWN})
"""Reasons (or none) which only say that there was no cause to condense."""
NO_MORE_CONDENSED = NOTHING_CONDENSED | {
    Reason.REVERTED,
    Reason.NOT_PREPARED,
    Reason.NO_PROGRESS,
    Reason.NO_ROOM,
    Reason.SUMMARY_BOUNDARY,
    "no-compaction",
    *(reason for reason in REASONS if reason.startswith("nothing-to-")),
}
"""These, and the reasons which only say that condensing was tried, or put off, and saved nothing more."""


class Action(StrEnum):
    """The kind of view that is forwarded: the values of `X-Condenser-Action`."""

    PASSED = "passed"
    REPLAYED = "replayed"
    CONDENSED = "condensed"
    WOULD_CONDENSE = "would-condense"
    BYPASSED = "bypassed"
    DEGRADED = "degraded"


class Trigger(StrEnum):
    """Why the view was condensed: the values of `X-Condenser-Trigger`."""

    NONE = "none"
    JUDGE = "judge"
    THRESHOLD = "threshold"
    CONTEXT_LIMIT = "context_limit"
    OVERFLOW = "overflow"
    FORCED = "forced"
