"""The demo's conversation (planted turns, a recorded session, and questions at the end), and the ways it is sent."""

from __future__ import annotations

import gzip
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files

from proxy.replaying.converted import in_protocol
from proxy.replaying.measures import ReplayedConversation, ReplayedRequest, Summary, summarize
from proxy.replaying.play import Playing, request_ends
from proxy.replaying.recorded import Conversation, Message, Question
from strategies.core.messages import Role
from strategies.dialects.chat import CHAT, content_text

PLANTED_TURNS = 3


def load(protocol: str = CHAT.name) -> Conversation:
    """Loads the conversation that comes with the program, in a protocol."""
    here = files(__package__)
    planted = tomllib.loads(here.joinpath("planted.toml").read_text("utf-8"))
    recorded = json.loads(gzip.decompress(here.joinpath("conversation.json.gz").read_bytes()))
    messages: list[Message] = [{"role": "system", "content": planted["system"]}]
    for turn in planted["turns"]:
        messages += ({"role": role, "content": turn[role]} for role in ("user", "assistant"))
    messages += recorded["messages"]
    questions = [_question(asked["text"], asked["evidence"], messages) for asked in planted["questions"]]
    return in_protocol(Conversation("demo", messages, recorded["tools"], questions), protocol)


def _question(text: str, evidence: str, messages: Sequence[Message]) -> Question:
    told = (i for i, message in enumerate(messages) if evidence in content_text(message.get("content")))
    return Question(text, [evidence], [next(told)])


def first(conversation: Conversation, requests: int | None) -> Conversation:
    """The conversation up to the reply to the last of `requests` requests; all of it for None."""
    ends = list(request_ends(conversation))
    if requests is None or requests >= len(ends):
        return conversation
    return replace(conversation, messages=conversation.messages[: ends[requests - 1] + 1])


def turn_of(conversation: Conversation, end: int) -> int:
    """The turn to which the last of the first `end` messages belongs."""
    read = conversation.endpoint.dialect.read
    return sum(read(message).role is Role.USER for message in conversation.messages[:end])


def is_planted(question: Question) -> bool:
    """Whether the answer is in a planted turn, rather than in a tool's output in the recording."""
    return question.places[0] <= 2 * PLANTED_TURNS


@dataclass(slots=True)
class Way:
    """The conversation under one strategy, and what became of its requests and questions."""

    name: str
    strategy: str
    window: int
    playing: Playing
    is_direct: bool
    """Whether no proxy is between the client and the model server."""
    requests: list[ReplayedRequest] = field(default_factory=list)
    reached: list[bool | None] = field(default_factory=list)
    """For each question whether its evidence was forwarded; None if a model server would have refused the request."""

    @property
    def avoided(self) -> int:
        """How many requests were answered although the client sent more than the window."""
        return sum(not request.refused and request.sent_tokens > self.window for request in self.requests)

    async def send(self, end: int) -> ReplayedRequest | None:
        """Sends a request; None if this is the direct way and has stopped at its first refusal."""
        if self.is_direct and self.requests and self.requests[-1].refused:
            return None
        self.requests.append(self._judged(await self.playing.send(end)))
        return self.requests[-1]

    async def ask(self, question: Question) -> None:
        """Asks a question after the whole history, so that no answer helps with the next question."""
        request, reached = await self.playing.ask(question)
        self.reached.append(None if self._judged(request).refused else reached)

    def _judged(self, request: ReplayedRequest) -> ReplayedRequest:
        """The request as a model server takes it: refused if it is longer than the window."""
        return replace(request, message_tokens=None) if request.forwarded_tokens > self.window else request

    def summary(self) -> Summary:
        return summarize(self.strategy, [ReplayedConversation(self.requests)])
