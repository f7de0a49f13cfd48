"""Learns from a reply while it is relayed: its usage, its ending, and whether the upstream has truncated the prompt."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from proxy.chat.usage import Usage
from proxy.condensing.decision import Decision
from proxy.http.headers import Headers, first
from proxy.learning.learned_windows import LearnedWindows
from proxy.learning.profiles import MOST_MODELS
from proxy.learning.truncation import CountedReply, setting_of
from proxy.quoting import label
from proxy.reply.capture import Capture
from proxy.reply.relay import MAX_HELD, Settle
from proxy.reply.usage import UsageReader
from proxy.request.chat import ChatRequest
from proxy.runtime.lru import Lru
from proxy.sessions.identity import DERIVED

_log = logging.getLogger(__name__)

Learn = Callable[[Usage], None]
"""Called with a reply's usage."""


class WatchedReply:
    """Takes in a reply's bytes for its usage and, with a `capture`, for its message."""

    def __init__(self, headers: Headers, capture: Capture | None) -> None:
        self.headers = headers
        self.usage = UsageReader(first(headers, b"content-encoding") or "")
        self._capture = capture
        self._captured = 0

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        self.usage.feed(chunk)
        if self._capture is not None:
            self._captured += len(chunk)
            self._capture.feed(chunk)
            if self._captured > MAX_HELD:
                self._capture = None

    def message(self) -> dict[str, Any] | None:
        """The assistant's message, if there is a capture and the reply is complete and not too large."""
        return self._capture.message() if self._capture is not None else None


class Watcher:
    """Learns from replies; one per app. `report` is called for each truncation, `upstream` is an address."""

    def __init__(self, learned: LearnedWindows, report: Callable[[], None], upstream: str) -> None:
        self._learned = learned
        self._report = report
        self._upstream = upstream
        self._logged: Lru[str, int] = Lru(MOST_MODELS)

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
        self._look_for_truncation(request, decision, usage, watched)
        if learn is not None:
            learn(usage)

    def _look_for_truncation(
        self, request: ChatRequest, decision: Decision, usage: Usage, watched: WatchedReply
    ) -> None:
        """Learns, counts and logs it if the usage proves that the upstream truncates prompts."""
        # Our count of a picture is only a bound, so it does not tell which of two prompts is longer.
        if not request.body.is_text:
            return
        reply = CountedReply(decision.view.tokens, usage.prompt, decision.exact)
        shares = not request.controls.no_store
        kept = self._learned.learn_from_usage(request.scope, decision.expected_tokens, reply, shares=shares)
        if kept is not None:
            self._report()
            self._log_truncation(request.model, kept, watched)

    def _log_truncation(self, model: str, kept: int, watched: WatchedReply) -> None:
        if self._logged.get(model) == kept:
            return
        self._logged.put(model, kept)
        server = first(watched.headers, b"server") or ""
        _log.warning(
            "%s silently reads only the newest %s tokens of a longer prompt. They are taken for its window, unless the"
            " settings give one. A longer one is set by %s.",
            *(label(model), kept, setting_of(f"{self._upstream} {server} {watched.usage.head}")),
        )
