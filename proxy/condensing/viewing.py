"""Writes a view into the body that is forwarded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from proxy.condensing.case import Case
from proxy.condensing.decision import Decision
from proxy.reasons import Reason
from proxy.searching.tool import ToolState, offer_members
from strategies.core.view import View


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
        members=(offer_members(request.body, case.offer, tool_state) if case.offer.is_made else {})
        | (_probe(case) if probe else {}),
    )


def written(decision: Decision, case: Case, *, probe: bool) -> Decision:
    """The decision with the bytes to forward; with `probe` they may ask for the usage of a stream."""
    probed = probe and _probes(decision, case)
    return decision._replace(probed=probed, body=spliced(decision.view, case, probe=probed))


def _probe(case: Case) -> dict[str, str]:
    options = case.request.body.get("stream_options") or {}
    return {"stream_options": json.dumps({**options, "include_usage": True})}
