"""How a decision is reported: response headers, the log line, the members of a JSON log line, a dry run's reply, and
the error for a request that cannot fit. No I/O.

Only the reply to a dry run holds content, and none holds a credential.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from proxy.bodies.measure import Precision
from proxy.condensing.policy import Policy
from proxy.condensing.turn import Decision
from proxy.conversations.session import MAX_SHOWN
from proxy.errors import ContextLengthExceeded
from proxy.quoting import label
from proxy.reasons import Trigger
from proxy.runtime.owned_tasks import load_of, offload
from proxy.servers.windows import REQUEST, SOURCE, UNKNOWN, Window
from proxy.tokens.counter import Counter, Opaque
from proxy.tokens.models import is_openais, plain_name
from strategies.core.budget import UNLIMITED, Budget
from strategies.core.messages import Message
from strategies.core.pieces import Literal, PieceKind


@dataclass(slots=True)
class Timing:
    """Milliseconds of each part of the work, as `Server-Timing` gives them, and how often the request was sent."""

    session: float = 0.0
    count: float = 0.0
    condense: float = 0.0
    upstream: float = 0.0
    first_byte: float = 0.0  # from the beginning to the first byte of the reply's body; 0 before that was sent
    started: float = field(default_factory=perf_counter)
    sends: int = 0  # more than one if the upstream refused it first

    def header(self) -> str:
        ours = f"session;dur={self.session:.2f}, count;dur={self.count:.2f}, condense;dur={self.condense:.2f}"
        return f"{ours}, upstream;dur={self.upstream:.2f}"

    @property
    def since_start(self) -> int:
        """Milliseconds since the request came."""
        return round((perf_counter() - self.started) * 1000)

    @property
    def ours(self) -> float:
        """Milliseconds that we added before forwarding."""
        return self.session + self.count + self.condense


def headers(decision: Decision, timing: Timing, *, accepted: bool = True) -> list[tuple[str, str]]:
    """The `X-Condenser-*` and `Server-Timing` headers; `accepted` tells if the upstream accepted the request."""
    context, policy = decision.context, decision.context.policy
    pairs = [
        ("X-Condenser-Session", decision.session),
        ("X-Condenser-Session-Source", decision.context.recognised.identity.source),
        ("X-Condenser-Strategy", policy.pipeline.text),
        ("X-Condenser-Action", decision.action),
        ("X-Condenser-Trigger", decision.trigger),
        ("X-Condenser-Branch", _branch(decision)),
        ("X-Condenser-Tokens-Before", str(decision.context.history.sent.tokens)),
        ("X-Condenser-Tokens-After", str(decision.tokens_after)),
        ("X-Condenser-Count", decision.context.history.measured.precision),
        # Of an unknown window, the size that was refused is all that is known.
        ("X-Condenser-Window", str(policy.window.tokens or policy.size_refused or UNKNOWN)),
        ("Server-Timing", timing.header()),
    ]
    if decision.reason:
        pairs.append(("X-Condenser-Reason", decision.reason))
    if decision.floor is not None:
        pairs.append(("X-Condenser-Floor", str(decision.floor)))
    if stages := decision.metadata.get("stages"):  # under `observe:` those that would shape the condensation
        pairs.append(("X-Condenser-Stages", "+".join(stages)))
    controls = context.request.controls
    if warnings := [*controls.warnings, *(_clamped_values(decision) if controls.options else ())]:
        pairs.append(("X-Condenser-Warning", "; ".join(warnings)))
    if head := context.heads[accepted]:
        pairs.append(("X-Condenser-Head", head))
    if decision.applied is not None:
        pairs.append(("X-Condenser-Condensation", decision.applied.id))
    if (advice := decision.context.advice) is not None:
        pairs.append(("X-Condenser-Economy", f"{policy.economy}; {advice}"))
    if (headroom := decision.headroom) is not None:
        pairs.append(("X-Condenser-Headroom", str(headroom)))
    return pairs


def _branch(decision: Decision) -> str:
    """The branch's name with the number of condensations in its view: `main++`, `main+4`."""
    depth = decision.applied.depth if decision.applied else 0
    return decision.context.branch_name + ("+" * depth if depth <= 3 else f"+{depth}")


OPTION_BOUNDS: Mapping[str, tuple[str, Callable[[Budget], int]]] = {
    "summary_max_tokens": ("what frame, ledger and record may have in that window", lambda budget: budget.summary_cap),
    "max_tokens": ("what a replacement may have in that window", lambda budget: budget.replacement_cap),
    "memory_max_tokens": ("a sixteenth of the window", lambda budget: budget.window // 16),
}
"""Options in tokens that the budget bounds, and by what."""


def _clamped_values(decision: Decision) -> Iterator[str]:
    """Yields a sentence for each option in the request that the budget clamps."""
    policy, options = decision.context.policy, decision.context.request.controls.options
    for stage in policy.stages if policy.budget else ():
        for name, (bound, most) in OPTION_BOUNDS.items():
            value = getattr(getattr(stage, "options", None), name, 0)
            if policy.budget and most(policy.budget) < value and {name, f"{stage.name}.{name}"} & options.keys():
                yield f"{stage.name}.{name} of {value:,} is clamped to {most(policy.budget):,}: {bound}"


def log_line(decision: Decision, timing: Timing, *, has_tools: bool = True) -> str:
    """The log line of this request for a person, without content or credentials."""
    window, before = decision.context.policy.window.tokens, short(decision.context.history.sent.tokens)
    done = (
        _action_phrase(decision),
        _prepared_phrase(decision),
        decision.reason,
        f"+{timing.ours:.0f} ms",
    )
    parts = [
        label(decision.session, MAX_SHOWN),
        _branch(decision),
        decision.context.policy.pipeline.text,
        f"{before}→{short(decision.tokens_after)} of {short(window) if window else 'unknown'}",
        _beside_messages(decision, has_tools=has_tools),
        ", ".join(filter(None, done)),
    ]
    own = decision.all_own_tokens
    return " ".join(filter(None, parts)) + (f", own {short(own)} tok" if own else "") + _economy_phrase(decision)


def _economy_phrase(decision: Decision) -> str:
    """What condensing at the cheapest trigger saves or would save, the tip once in a session."""
    advice, session = decision.context.advice, decision.context.recognised.session
    is_auto = decision.context.policy.economy == "auto"
    if advice is None or (session and "economy" in session.traits and not is_auto):
        return ""
    sizes = f"from {short(advice.trigger)} to {short(advice.target)} tokens"
    does, cuts = ("economy=auto condenses", "cuts") if is_auto else ("tip: economy=auto would condense", "cut")
    return f", {does} {sizes} and {cuts} prompt cost by {advice.saves:.0%}"


def _action_phrase(decision: Decision) -> str:
    """The action; for a condensation that this request made or took, with its trigger."""
    return str(decision.action) + ("" if decision.trigger is Trigger.NONE else f" by {decision.trigger}")


def _prepared_phrase(decision: Decision) -> str:
    if not decision.was_prepared or decision.applied is None:
        return ""
    if reason := decision.applied.told("fallback_reason"):
        return f"record by rules ready: {reason}"
    kinds = {piece.kind for piece in decision.applied.pieces if isinstance(piece, Literal)}
    return "summary ready" if kinds & {PieceKind.REPLACEMENT, PieceKind.OPAQUE} else "ready"


def dry_run(decision: Decision) -> bytes:
    document = {
        "object": "condenser.dry_run",
        **_document(decision),
        "window_source": decision.context.policy.window.source,
        "budget": budget_document(decision.context.policy),
        "upstream_tokens": decision.expected_tokens,
        "plan": dict(decision.metadata),
        "messages": [message.body for message in decision.view.messages],
    }
    return json.dumps(document, ensure_ascii=True).encode()


def _document(decision: Decision) -> dict[str, Any]:
    """What was decided on a request, as members of a JSON object."""
    return {
        "session": decision.session,
        "session_source": decision.context.recognised.identity.source,
        "branch": _branch(decision),
        "strategy": decision.context.policy.pipeline.text,
        "action": decision.action,
        "reason": decision.reason or None,
        "trigger": decision.trigger,
        "tokens_before": decision.context.history.sent.tokens,
        "tokens_after": decision.tokens_after,
        "floor": decision.floor,
        "window": decision.context.policy.window.tokens,
        "headroom": decision.headroom,
    }


def _beside_messages(decision: Decision, *, has_tools: bool) -> str:
    """The sizes of the tools, with the framing, and of the floor."""
    tools = f"tools {short(decision.context.history.measured.overhead)}" if has_tools else ""
    floor = f"floor {short(decision.floor)}" if decision.floor is not None else ""
    shown = ", ".join(filter(None, (tools, floor)))
    return f"({shown})" if shown else ""


def fields(decision: Decision, timing: Timing) -> dict[str, Any]:
    """The members of a JSON log line."""
    applied, economy = decision.applied, decision.context.advice
    return {
        **_document(decision),
        "condensation": applied.id if applied else None,
        "prepared": decision.was_prepared,
        "tokens_of_tools": decision.context.history.measured.overhead,
        "tokens_exact": decision.context.history.measured.precision is Precision.EXACT,
        "own_tokens": decision.all_own_tokens,
        "economy": decision.context.policy.economy,
        "economy_trigger": economy.trigger if economy else None,
        "economy_saves": round(economy.saves, 3) if economy else None,
        "session_ms": round(timing.session, 2),
        "count_ms": round(timing.count, 2),
        "condense_ms": round(timing.condense, 2),
        "upstream_ms": round(timing.upstream, 2),
        "sends": timing.sends,
    }


def budget_document(policy: Policy) -> dict[str, int | str | None] | None:
    """The effective numbers of a budget, in tokens of the upstream; `fits` is None in a window that is not known."""
    budget = policy.budget
    if budget is None:
        return None
    names = ("reserve", "usable", "prepare", "trigger", "target", "step", "least_headroom")
    fits = budget.fits if budget.fits < UNLIMITED else None
    return {**{name: getattr(budget, name) for name in names}, "trigger_by": budget.cause.value, "fits": fits}


def short(tokens: int) -> str:
    """27,912 as `27.9k`."""
    return f"{tokens / 1000:.1f}k" if tokens >= 1000 else str(tokens)


def where_tokens_are(decision: Decision) -> str:
    """The message for a request that is too large: each part that cannot be condensed, with its tokens."""
    policy, view, newest = decision.context.policy, decision.view, decision.view.structure.newest_round
    window = policy.window.tokens or 0
    reserve = policy.budget.reserve if policy.budget else 0
    users, in_round = {view.task, view.last_user}, set(range(*newest or (0, 0)))
    pinned = {view.item_of(index) for index in view.transcript.pinned} - users - in_round

    def tokens_of(items: Iterable[int | None]) -> int:
        return sum(view.items[item].message.tokens for item in items if item is not None)

    parts = {
        "tools and framing": decision.context.history.measured.overhead,
        "system messages": view.transcript.system_tokens,
        "the first and the last user message": tokens_of(users),
        "pinned messages": tokens_of(pinned),
        "the newest round": tokens_of(in_round),
    }
    parts["other messages"] = view.tokens - sum(parts.values())
    listed = ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items() if tokens > 0)
    return (
        f"This model's context length is {window:,} tokens ({_origin(policy.window)}). After condensing, the request"
        f" still has {view.tokens:,} tokens that cannot be condensed: {listed}. Another {reserve:,} are reserved for"
        " the reply. Please shorten these parts."
    )


def _origin(window: Window) -> str:
    """Where the window is known from, in words for the client's user."""
    if window.source == SOURCE:
        return "as the upstream said when it refused a longer prompt"
    if window.source == REQUEST:
        return "from this request's X-Condenser-Window header or condenser.window member"
    return window.source if window.source.startswith("stated") else f"from the {window.source}"


OWN_ERROR, FOREIGN_ERROR = 0.10, 0.25
"""The share by which our count of text may be too high, if calibration has not measured it: with the vendor's tokenizer
and with another one. DeepSeek's makes 16 % fewer tokens of Chinese. A factor may not apply to a script at all."""


async def refuse_if_hopeless(decision: Decision) -> None:
    """Raises `ContextLengthExceeded` if text alone exceeds a known window by more than its count may be wrong.

    Otherwise the upstream judges: pictures, files and reasoning may cost less than their price.
    """
    context = decision.context
    budget, counter, request = context.sized.budget, context.server.counter, context.request
    if budget is None or decision.view.tokens <= budget.full_window or not decision.context.policy.window.is_known:
        return
    # A size refused is no window either.
    if context.history.measured.precision is Precision.ESTIMATE or context.policy.size_refused is not None:
        return
    most = OWN_ERROR if is_openais(plain_name(request.model)) else max(FOREIGN_ERROR, counter.factor - 1)
    error = most if context.sized.calibrated.error is None else min(context.sized.calibrated.error, most)
    limit = budget.full_window * (1 + error)
    view = decision.view
    if view.tokens <= limit:
        return
    messages = (*view.item_messages, *[system for _, system in view.transcript.systems])
    if view.tokens - await offload(load_of(messages), _opaque_tokens, messages, counter) > limit:
        raise ContextLengthExceeded(where_tokens_are(decision), param=request.body.endpoint.list_member)


def _opaque_tokens(messages: Sequence[Message], counter: Counter) -> int:
    """The tokens that are not those of text that every server reads, and that was counted whole."""
    opaque = Opaque()
    for message in messages:
        if not message.unpriced:
            counter.count(message.body, opaque)
    return opaque.tokens + sum(message.tokens for message in messages if message.unpriced)


def refuse_over_budget(decision: Decision) -> None:
    """Under `strict`, raises `ContextLengthExceeded` for a view that leaves less than the reserve for the reply."""
    policy, budget, tokens = decision.context.policy, decision.context.sized.budget, decision.view.tokens
    is_strict = policy.strict and policy.rewrites and policy.size_refused is None
    if is_strict and budget is not None and tokens > budget.fits:
        message = f"{where_tokens_are(decision)} As strict is set, at most {budget.fits:,} tokens are sent."
        raise ContextLengthExceeded(message, param=decision.context.request.body.endpoint.list_member)
