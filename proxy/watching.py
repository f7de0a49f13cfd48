"""What a reply says of its upstream, read beside the relay: its usage, and whether the prompt was read whole."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from proxy.capture import Capture
from proxy.decision import Decision
from proxy.headers import Headers, first
from proxy.intake import ChatRequest
from proxy.learned import LearnedWindows
from proxy.telemetry import Telemetry
from proxy.truncation import Judged, Reply, Standing, setting_of
from proxy.usage import Usage, UsageReader

_log = logging.getLogger(__name__)

Settle = Callable[[Mapping[str, Any] | None], Awaitable[None]]


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

    def settling(self, request: ChatRequest, decision: Decision, watched: Watched) -> Settle:
        """What is done when a reply has come whole: what it says is learned, then the session is stored."""

        async def settle(message: Mapping[str, Any] | None) -> None:
            await self._learn(request, decision, watched)
            if decision.settle is not None:
                await decision.settle(message)

        return settle

    async def _learn(self, request: ChatRequest, decision: Decision, watched: Watched) -> None:
        # What a search has led to was not in the view: only the first count is of that.
        rounds = decision.rounds
        usage = rounds.usages[0] if rounds and rounds.usages else watched.usage.usage()
        if usage is None:
            return
        said = await self._judged(request, decision, usage, watched)
        if decision.learn is not None:
            decision.learn(usage, said is not Standing.WHOLE)

    async def _judged(self, request: ChatRequest, decision: Decision, usage: Usage, watched: Watched) -> Standing:
        # Neither a length nor the bound for a picture is a count that a usage could be held against.
        if not decision.exact or not all(each.is_text for each in request.body.elements):
            return Standing.WHOLE
        reply = Reply(decision.upstream_least, usage.prompt, decision.upstream_prefix)
        said = await self._learned.replied(request.model, reply, shares=not request.controls.no_store)
        if said.standing is not Standing.WHOLE:
            self._telemetry.truncated(said.standing.name.lower())
            self._tell(request.model, reply, said, watched)
        return said.standing

    def _tell(self, model: str, reply: Reply, said: Judged, watched: Watched) -> None:
        if said.standing is Standing.SUSPECT:
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
