"""Learns from a reply while it is relayed: its usage, its ending, and whether the upstream has truncated the prompt."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from proxy.condensing.decision import Decision
from proxy.http.headers import Headers, first
from proxy.learning.learned_windows import MOST_MODELS, LearnedWindows
from proxy.learning.truncation import LONGER, CountedReply, Judgement, Sign, Suspicion, setting_of
from proxy.reply.capture import Capture
from proxy.reply.relay import Settle
from proxy.reply.usage import Usage, UsageReader
from proxy.request.identity import DERIVED
from proxy.request.intake import ChatRequest
from proxy.runtime.lru import Lru
from proxy.telemetry import Telemetry

_log = logging.getLogger(__name__)

Learn = Callable[[Usage, bool], None]
"""Called with a reply's usage, and whether the upstream may have truncated the prompt."""


class WatchedReply:
    """Takes in a reply's bytes for its usage and, with a `capture`, for its message."""

    def __init__(self, headers: Headers, capture: Capture | None) -> None:
        self.headers = headers
        self.usage = UsageReader(first(headers, b"content-encoding") or "")
        self._capture = capture

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        self.usage.feed(chunk)
        if self._capture is not None:
            self._capture.feed(chunk)

    def message(self) -> dict[str, Any] | None:
        """The assistant's message, if there is a capture and the reply is complete."""
        return self._capture.message() if self._capture is not None else None


class Watcher:
    """Learns from replies; one per app. `upstream` is the upstream's address."""

    def __init__(self, learned: LearnedWindows, telemetry: Telemetry, upstream: str) -> None:
        self._learned = learned
        self._telemetry = telemetry
        self._upstream = upstream
        self._logged: Lru[tuple[str, Sign | None], bool] = Lru(MOST_MODELS)

    def settle_callback(self, request: ChatRequest, decision: Decision, watched: WatchedReply) -> Settle:
        """The callback for a complete reply: it learns from the reply at once and then has the session stored."""

        # The decision drops its callbacks when the request is over, which may be before the reply is settled.
        learn, store = decision.learn, decision.settle
        needs_ending = store is not None and decision.session_source == DERIVED

        def settle(message: Mapping[str, Any] | None) -> Awaitable[None] | None:
            # Synchronous: nothing may come between the end of a reply and the start of storing it. A defect in here
            # costs what the reply would have taught, not the session.
            try:
                if needs_ending:
                    decision.reply_ending = watched.usage.ending()
                self._learn(request, decision, watched, learn)
            except Exception:  # noqa: BLE001
                _log.exception("nothing was learned from a reply")
            return store(message) if store is not None else None

        return settle

    def _learn(self, request: ChatRequest, decision: Decision, watched: WatchedReply, learn: Learn | None) -> None:
        # The results of a search were not in the view: only the usage of the first round counts the view.
        rounds = decision.hidden_rounds
        usage = rounds.usages[0] if rounds and rounds.usages else watched.usage.usage()
        if usage is None:
            return
        suspicion = self._judge(request, decision, usage, watched)
        if learn is not None:
            learn(usage, suspicion is not Suspicion.WHOLE)

    def _judge(self, request: ChatRequest, decision: Decision, usage: Usage, watched: WatchedReply) -> Suspicion:
        """Whether the upstream has truncated the prompt, judged by its usage; logs and counts it if so."""
        # The tokens of a picture are only bounded, so a usage cannot be compared with them.
        if not request.body.is_text:
            return Suspicion.WHOLE
        is_calibrated = decision.calibrated.is_learned
        sent, prefix = decision.least_upstream_count, decision.upstream_prefix_count
        if prefix is not None and usage.prompt * LONGER <= sent and decision.shows_reasoning:
            # The prefix was counted with reasoning, which this prompt may be without.
            sent, prefix = min(sent, decision.view.tokens), None
        own = decision.view.tokens
        reply = CountedReply(sent, usage.prompt, prefix, calibrated=is_calibrated, exact=decision.exact, own=own)
        judged = self._learned.learn_from_usage(request.model, reply, shares=not request.controls.no_store)
        if judged.suspicion is not Suspicion.WHOLE:
            self._telemetry.record_truncation(judged.suspicion.name.lower())
            self._log_truncation(request.model, reply, judged, watched)
        return judged.suspicion

    def _log_truncation(self, model: str, reply: CountedReply, judged: Judgement, watched: WatchedReply) -> None:
        if judged.suspicion is Suspicion.SUSPECT:
            # Once: every reply of an upstream that invents its usage may look so, and the metric counts them all.
            if self._logged.get(key := (model, judged.sign)):
                return
            self._logged.put(key, True)
            suspected = "%s may have read only a part of a prompt (%s): %s tokens of about %s"
            _log.info(suspected, model, judged.sign, reply.counted, reply.expected)
            return
        server = first(watched.headers, b"server") or ""
        _log.warning(
            "%s silently reads only the newest part of a prompt (%s: %s tokens of about %s). Its window is taken to be"
            " %s tokens from now on. A longer one is set by %s.",
            *(model, judged.sign, reply.counted, reply.expected, judged.kept),
            setting_of(f"{self._upstream} {server} {watched.usage.head}"),
        )
