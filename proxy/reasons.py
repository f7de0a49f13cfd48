"""The closed list of values of `X-Condenser-Reason`. `docs/reasons.md` has a heading for each.

A request has one reason. A reason that merely says why nothing was condensed, or no more than before, gives way to
one that tells the client something about its request. The two sets below `Reason` hold the reasons that give way.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why the proxy did what `X-Condenser-Action` says, or did not do more."""

    BELOW_MARKS = "below-marks"
    ALIGNED = "aligned"
    NEW_BRANCH = "new-branch"
    STRATEGY_OFF = "strategy-off"
    WINDOW_UNKNOWN = "window-unknown"
    WAITING_FOR_STEP = "waiting-for-step"
    REVERTED = "reverted"
    NOT_PREPARED = "not-prepared"
    AWAITING_VERDICT = "awaiting-verdict"
    NO_VERDICT = "no-verdict"
    NO_PROGRESS = "no-progress"
    NO_ROOM = "no-room"
    NOTHING_TO_CONDENSE = "nothing-to-condense"
    NOTHING_TO_DROP = "nothing-to-drop"
    NOTHING_TO_MASK = "nothing-to-mask"
    NOTHING_TO_EXTRACT = "nothing-to-extract"
    NOTHING_TO_SHORTEN = "nothing-to-shorten"
    NOTHING_TO_SUMMARIZE = "nothing-to-summarize"
    SUMMARY_BOUNDARY = "summary-boundary"
    SUMMARY_TIMEOUT = "summary-timeout"
    SUMMARY_UNREACHABLE = "summary-unreachable"
    SUMMARY_RATE_LIMITED = "summary-rate-limited"
    SUMMARY_HTTP_ERROR = "summary-http-error"
    SUMMARY_PAUSED = "summary-paused"
    SUMMARY_EXPIRED = "summary-expired"
    SUMMARY_NOT_ACCEPTED = "summary-not-accepted"
    SUMMARY_SHARED_CACHE = "summary-shared-cache"
    SUMMARY_UNREADABLE = "summary-unreadable"
    SUMMARY_CALLED_TOOLS = "summary-called-tools"
    SUMMARY_CUT_SHORT = "summary-cut-short"
    SUMMARY_NOT_FINISHED = "summary-not-finished"
    SUMMARY_EMPTY = "summary-empty"
    SUMMARY_TOO_LONG = "summary-too-long"
    SUMMARY_REFUSED = "summary-refused"
    SUMMARY_ECHO = "summary-echo"
    SUMMARY_NOT_SMALLER = "summary-not-smaller"
    SUMMARY_UNTAGGED = "summary-untagged"
    INVALID_PLAN = "invalid-plan"
    FLOOR = "floor"
    IRREDUCIBLE = "irreducible"
    REASONING_DROPPED = "reasoning-dropped"
    REWRITE_REFUSED = "rewrite-refused"
    MEMORY_TOOL_TAKEN = "memory-tool-taken"
    MEMORY_TOOL_REFUSED = "memory-tool-refused"
    MEMORY_TOOL_NOT_RUN = "memory-tool-not-run"
    STORE_BUSY = "store-busy"
    STORE_CLOSED = "store-closed"
    STORE_CONTENDED = "store-contended"
    STORE_CORRUPT = "store-corrupt"
    STORE_ERROR = "store-error"
    STORE_FULL = "store-full"
    STORE_LOADING = "store-loading"
    STORE_QUOTA = "store-quota"
    STORE_READ_ONLY = "store-read-only"
    STORE_REFUSED = "store-refused"
    STORE_SCHEMA = "store-schema"
    STORE_TIMEOUT = "store-timeout"
    STORE_UNAVAILABLE = "store-unavailable"
    NOT_CONDENSED_ENDPOINT = "not-condensed-endpoint"
    SERVER_STATE = "server-state"
    UNRESOLVED_REFERENCE = "unresolved-reference"
    ENCODED_BODY = "encoded-body"
    UNREADABLE_BODY = "unreadable-body"
    CREDENTIAL_UNPROVEN = "credential-unproven"
    INTERNAL_ERROR = "internal-error"


NOTHING_CONDENSED = frozenset({"", Reason.BELOW_MARKS, Reason.WAITING_FOR_STEP, Reason.WINDOW_UNKNOWN})
"""Reasons (or none) which only say that there was no cause to condense."""
NO_MORE_CONDENSED = NOTHING_CONDENSED | {
    Reason.REVERTED,
    Reason.NOT_PREPARED,
    Reason.NO_PROGRESS,
    Reason.NO_ROOM,
    Reason.SUMMARY_BOUNDARY,
    *(reason for reason in Reason if reason.startswith("nothing-to-")),
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
