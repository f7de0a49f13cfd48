"""CliffCompaction's rule, as a row to compare with: what others do without a model. Written from its description.

Above the trigger the prompt becomes what stood before the first assistant message, one user message, and the newest
three assistant steps. That message is mechanical: what users and the assistant said, calls as their name and 150
characters, results of up to 500 characters. Earlier summaries are not fed on. Below the trigger the client's bytes go
on (EmbeddedLLM/pi-cliffcompaction, DESIGN.md; PyPI cliffcompaction 0.1.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.reasons import Action
from proxy.replaying.measures import ForwardedMessage, ReplayedConversation, ReplayedRequest, common_prefix, size
from proxy.replaying.play import Player, kept_in, request_ends
from proxy.replaying.recorded import Conversation
from strategies.core.messages import Role

NAME = "cliff"
STEPS = 3
CALL, RESULT = 150, 500  # characters


def play(player: Player, conversation: Conversation) -> ReplayedConversation:
    """The conversation under the rule, whose trigger is ours."""
    rule = _Rule(player, conversation)
    for end in request_ends(conversation):
        rule.send(end)
    return kept_in(conversation, rule.end, rule.view, rule.requests)


class _Rule:
    def __init__(self, player: Player, conversation: Conversation) -> None:
        budget = player.budget()
        self._player, self._conversation = player, conversation
        self._trigger, self._usable = (budget.trigger, budget.usable) if budget else (0, 0)
        self._roles = [conversation.endpoint.dialect.read(message).role for message in conversation.messages]
        roles = self._roles
        self._head = roles.index(Role.ASSISTANT) if Role.ASSISTANT in roles else len(roles)
        self._cut, self._summary = self._head, ""
        self._overhead = player.overhead(conversation)
        self.view: list[ForwardedMessage] = []
        self.requests: list[ReplayedRequest] = []
        self.end = 0

    def send(self, end: int) -> None:
        """Sends the request whose history are the first `end` messages."""
        before, condensed = self.view, False
        sent = self._messages(end)
        if self._overhead + size(sent) > self._trigger and self._compact(end):
            sent, condensed = self._messages(end), True
        original = self._overhead + size(self._player.forwarded(self._conversation, self._conversation.messages[:end]))
        self.requests.append(
            ReplayedRequest(
                sent_tokens=original,
                message_tokens=size(sent),
                shared_tokens=common_prefix(before, sent),
                overhead_tokens=self._overhead,
                usable_tokens=self._usable,
                milliseconds=0.0,
                action=Action.CONDENSED if condensed else Action.PASSED,
            )
        )
        self.view, self.end = sent, end

    def _messages(self, end: int) -> list[ForwardedMessage]:
        messages = self._conversation.messages
        summary = [self._conversation.endpoint.dialect.user(self._summary)] if self._summary else []
        return self._player.forwarded(
            self._conversation, [*messages[: self._head], *summary, *messages[self._cut : end]]
        )

    def _compact(self, end: int) -> bool:
        """Writes the summary anew; returns whether anything more went into it."""
        steps = [place for place in range(self._cut, end) if self._roles[place] is Role.ASSISTANT]
        if len(steps) <= STEPS:
            return False
        gone, self._cut = range(self._cut, steps[-STEPS]), steps[-STEPS]
        messages = self._conversation.messages
        lines = [line for place in gone for line in lines_of(self._conversation, messages[place])]
        self._summary = "Summary of the conversation so far:\n" + "\n".join(lines)
        return True


def lines_of(conversation: Conversation, message: Mapping[str, Any]) -> Sequence[str]:
    """What the summary says of a message."""
    dialect = conversation.endpoint.dialect
    reading, text = dialect.read(message), dialect.text(message)
    if reading.role is Role.TOOL:
        return [f"result: {text}"] if len(text) <= RESULT else []
    said = [f"{reading.role.value}: {text}"] if text else []
    return [*said, *(f"called {call.name} {call.arguments[:CALL]}" for call in reading.calls)]
