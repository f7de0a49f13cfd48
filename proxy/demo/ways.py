"""The three ways of the demo: what the client sends itself, trimmed, and condensed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from proxy.replaying.measures import ReplayedConversation, ReplayedRequest, Summary, Tally
from proxy.replaying.play import Playing
from proxy.replaying.recorded import Question

DIRECT, TRIMMED = "off", "recent"
NAMES = ("direct", "trimmed", "condensed")


class Options(NamedTuple):
    """The strategy of the third way, the window in tokens, and how many requests to replay (None for all)."""

    strategy: str
    window: int
    requests: int | None = None


@dataclass(slots=True)
class Way:
    """The conversation under one strategy, and what became of its requests and questions."""

    name: str
    strategy: str
    window: int
    playing: Playing
    requests: list[ReplayedRequest] = field(default_factory=list)
    reached: list[bool | None] = field(default_factory=list)
    """For each question whether its evidence was forwarded; None if a model server would have refused the request."""

    @property
    def is_direct(self) -> bool:
        """Whether no proxy stands between the client and the model server."""
        return self.name == NAMES[0]

    @property
    def avoided(self) -> int:
        """How many requests were answered although the client sent more than the window."""
        return sum(not each.refused and each.sent_tokens > self.window for each in self.requests)

    async def send(self, end: int) -> ReplayedRequest | None:
        """Sends a request; None if this is the direct way and has stopped at its first refusal."""
        if self.is_direct and self.requests and self.requests[-1].refused:
            return None
        self.requests.append(self._judged(await self.playing.send(end)))
        return self.requests[-1]

    async def ask(self, question: Question) -> None:
        """Asks a question behind the whole history, so that no answer helps with the next question."""
        request, reached = await self.playing.ask(question)
        self.reached.append(None if self._judged(request).refused else reached)

    def _judged(self, request: ReplayedRequest) -> ReplayedRequest:
        """The request as a model server takes it: refused where it is longer than the window."""
        return replace(request, message_tokens=None) if request.forwarded_tokens > self.window else request

    def summary(self) -> Summary:
        """The figures of all requests."""
        return Tally(self.strategy, [ReplayedConversation(self.requests)]).summary()
