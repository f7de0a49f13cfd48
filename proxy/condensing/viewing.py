"""Makes a view without a store, and writes a view into the body that is forwarded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from proxy.condensing.case import Case
from proxy.condensing.decision import Decision
from proxy.learning.learned_windows import Origin
from proxy.reasons import Action, Reason
from proxy.searching.tool import ToolState, offer_members
from strategies.core.budget import Budget
from strategies.core.view import View
from strategies.walk import walk


def view_without_store(case: Case, budget: Budget) -> View:
    """The view without a store; what it condenses is in no record."""
    policy, measured = case.policy, case.measured
    return walk(measured.transcript, policy.stages, policy.ladder, budget, measured.overhead, case.counter)


def _probes(decision: Decision, case: Case) -> bool:
    """Whether a body that is changed, or a trial, should ask for a stream's usage that the client did not ask for."""
    body, is_trial = case.request.body, decision.reason == Reason.WINDOW_TRIAL
    if body.get("stream") is not True or not (decision.view.is_changed or case.is_rewritten or is_trial):
        return False
    options = body.get("stream_options")
    has_place = options is None or isinstance(options, Mapping)
    asks = isinstance(options, Mapping) and options.get("include_usage") is True
    return case.policy.profile.stream_options and has_place and not asks


def spliced(
    view: View,
    case: Case,
    hidden: Sequence[str] = (),
    tool_state: ToolState = ToolState.OFFERED,
    *,
    probe: bool = False,
) -> bytes:
    """The bytes to forward: the view, followed by `hidden` messages as JSON text.

    With `probe` they ask for the usage of the stream.
    """
    request = case.request
    messages = view.encoded() if view.is_changed or case.is_rewritten or hidden else None
    if hidden and messages is not None:
        messages = messages[:-1] + b"".join(b"," + each.encode() for each in hidden) + b"]"
    return request.body.spliced(
        messages=messages,
        model=request.model if request.has_suffix else None,
        members={**offer_members(request.body, case.offer, tool_state), **(_probe(case) if probe else {})},
    )


def written(decision: Decision, case: Case, *, probe: bool) -> Decision:
    """The decision with the bytes to forward; with `probe` they may ask for the usage of a stream."""
    probed = probe and _probes(decision, case)
    return decision._replace(probed=probed, body=spliced(decision.view, case, probe=probed))


def _probe(case: Case) -> dict[str, str]:
    options = case.request.body.get("stream_options") or {}
    return {"stream_options": json.dumps({**options, "include_usage": True})}


def is_first_of_a_truncated_window(decision: Decision, case: Case) -> bool:
    """Whether this view is the session's first condensed for a window that a silent truncation has taught."""
    window, applied = case.policy.window, decision.applied
    if window.learned_by is not Origin.TRUNCATION or decision.action is not Action.CONDENSED or applied is None:
        return False
    others = (each for each in case.recognised.condensations if each.id != applied.id)
    return applied.window == window.tokens and all(each.window > applied.window for each in others)
