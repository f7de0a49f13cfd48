"""What a reply says, read beside the relay: its usage, how it ends, and whether the prompt was read whole."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from proxy.condensing.decision import Decision
from proxy.http.headers import Headers, first
from proxy.learning.learned_windows import MOST_MODELS, LearnedWindows
from proxy.learning.truncation import LONGER, CountedReply, Judged, Sign, Suspicion, setting_of
from proxy.reply.capture import Capture
from proxy.reply.relay import Settle
from proxy.reply.usage import Usage, UsageReader
from proxy.request.identity import DERIVED
from proxy.request.intake import ChatRequest
from proxy.runtime.lru import Lru
from proxy.telemetry import Telemetry

_log = logging.getLogger(__name__)

Learn = Callable[[Usage, bool], None]


class Watched:
    """Takes in a reply for all who want to know of it; `capture` is given where its message is wanted."""

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
        """The assistant's message, where it is wanted and has come whole."""
        return self._capture.message() if self._capture is not None else None


class Watcher:
    """Learns from replies; one per app. `upstream` is its address."""

    def __init__(self, learned: LearnedWindows, telemetry: Telemetry, upstream: str) -> None:
        self._learned = learned
        self._telemetry = telemetry
        self._upstream = upstream
        self._told: Lru[tuple[str, Sign | None], bool] = Lru(MOST_MODELS)

    def settling(self, request: ChatRequest, decision: Decision, watched: Watched) -> Settle:
        """What is done when a reply has come whole: what it says is learned at once, then the session is stored."""

        # The decision lets go of them when its request is over: that may be before this is begun.
        learn, store = decision.learn, decision.settle
        needs_ending = store is not None and decision.source == DERIVED

        def settle(message: Mapping[str, Any] | None) -> Awaitable[None] | None:
            # Nothing may come between a reply's end and the beginning of what is stored of it.
            try:
                if needs_ending:
                    decision.reply = watched.usage.ending()
                self._learn(request, decision, watched, learn)
            except Exception:  # noqa: BLE001
                # A defect costs what the reply would have taught, not the session.
                _log.exception("nothing was learned from a reply")
            return store(message) if store is not None else None

        return settle

    def _learn(self, request: ChatRequest, decision: Decision, watched: Watched, learn: Learn | None) -> None:
        # What a search has led to was not in the view: only the first count is of that.
        rounds = decision.rounds
        usage = rounds.usages[0] if rounds and rounds.usages else watched.usage.usage()
        if usage is None:
            return
        said = self._judged(request, decision, usage, watched)
        if learn is not None:
            learn(usage, said is not Suspicion.WHOLE)

    def _judged(self, request: ChatRequest, decision: Decision, usage: Usage, watched: Watched) -> Suspicion:
        # The bound for a picture is no count that a usage could be held against.
        if not request.body.is_text:
            return Suspicion.WHOLE
        known = decision.calibrated.is_learned
        sent, prefix = decision.upstream_least, decision.upstream_prefix
        if prefix is not None and usage.prompt * LONGER <= sent and decision.shows_reasoning:
            # That was counted with reasoning which this prompt may be without.
            sent, prefix = min(sent, decision.view.tokens), None
        own = decision.view.tokens
        reply = CountedReply(sent, usage.prompt, prefix, calibrated=known, exact=decision.exact, own=own)
        said = self._learned.replied(request.model, reply, shares=not request.controls.no_store)
        if said.standing is not Suspicion.WHOLE:
            self._telemetry.truncated(said.standing.name.lower())
            self._tell(request.model, reply, said, watched)
        return said.standing

    def _tell(self, model: str, reply: CountedReply, said: Judged, watched: Watched) -> None:
        if said.standing is Suspicion.SUSPECT:
            # Once: every reply of an upstream that invents its usage may look so, and the metric counts them all.
            if self._told.get(told := (model, said.sign)):
                return
            self._told.put(told, True)
            suspected = "%s may have read only a part of a prompt (%s): %s tokens of about %s"
            _log.info(suspected, model, said.sign, reply.counted, reply.sent)
            return
        server = first(watched.headers, b"server") or ""
        _log.warning(
            "%s silently reads only the newest part of a prompt (%s: %s tokens of about %s). Its window is taken to be"
            " %s tokens from now on. A longer one is set by %s.",
            *(model, said.sign, reply.counted, reply.sent, said.kept),
            setting_of(f"{self._upstream} {server} {watched.usage.head}"),
        )
