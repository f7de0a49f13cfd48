"""What others do without a model, as rows to compare with: a way to show the history, played request by request.

CliffCompaction's rule is written from its description (EmbeddedLLM/pi-cliffcompaction, DESIGN.md; PyPI cliffcompaction
0.1.0). Below the trigger the client's messages go on. Above it the prompt becomes what stood before the first assistant
message, one user message, and the newest three assistant steps. That message is mechanical: what users and the
assistant said, calls as their name and 150 characters, results of up to 500 characters. Earlier summaries are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.reasons import Action
from proxy.replaying.measures import ForwardedMessage, ReplayedConversation, ReplayedRequest, common_prefix, size
from proxy.replaying.play import Player, kept_in, request_ends
from proxy.replaying.recorded import Conversation, Message
from strategies.core.messages import Role

CLIFF = "cliff"
STEPS = 3
CALL, RESULT = 150, 500  # characters
Show = Callable[[int], Sequence[Message]]
"""The messages that are forwarded for a request whose history are the first so many."""


def play(player: Player, conversation: Conversation, show: Show) -> ReplayedConversation:
    """A conversation whose requests are shown in some way; a shorter prompt than the one before counts as condensed."""
    budget, overhead = player.budget(), player.overhead(conversation)
    before: list[ForwardedMessage] = []
    end, requests = 0, list[ReplayedRequest]()
    for end in request_ends(conversation):
        sent = player.forwarded(conversation, show(end))
        requests.append(
            ReplayedRequest(
                sent_tokens=overhead + size(player.forwarded(conversation, conversation.messages[:end])),
                message_tokens=size(sent),
                shared_tokens=common_prefix(before, sent),
                overhead_tokens=overhead,
                usable_tokens=budget.usable if budget else 0,
                milliseconds=0.0,
                action=Action.CONDENSED if size(sent) < size(before) else Action.PASSED,
            )
        )
        before = sent
    return kept_in(conversation, end, before, requests)


def play_by_rule(player: Player, conversation: Conversation) -> ReplayedConversation:
    """The conversation under CliffCompaction's rule, at our trigger."""
    return play(player, conversation, _Rule(player, conversation).show)


class _Rule:
    def __init__(self, player: Player, conversation: Conversation) -> None:
        budget = player.budget()
        self._player, self._conversation = player, conversation
        self._most = (budget.trigger if budget else 0) - player.overhead(conversation)
        self._roles = [conversation.endpoint.dialect.read(message).role for message in conversation.messages]
        self._head = self._roles.index(Role.ASSISTANT) if Role.ASSISTANT in self._roles else len(self._roles)
        self._cut, self._summary = self._head, ""

    def show(self, end: int) -> Sequence[Message]:
        shown = self._shown(end)
        is_large = size(self._player.forwarded(self._conversation, shown)) > self._most
        return self._shown(end) if is_large and self._compact(end) else shown

    def _shown(self, end: int) -> Sequence[Message]:
        messages = self._conversation.messages
        summary = [self._conversation.endpoint.dialect.user(self._summary)] if self._summary else []
        return [*messages[: self._head], *summary, *messages[self._cut : end]]

    def _compact(self, end: int) -> bool:
        """Writes the summary anew; returns whether anything more went into it."""
        steps = [place for place in range(self._cut, end) if self._roles[place] is Role.ASSISTANT]
        if len(steps) <= STEPS:
            return False
        gone, self._cut = self._conversation.messages[self._cut : steps[-STEPS]], steps[-STEPS]
        lines = [line for message in gone for line in lines_of(self._conversation, message)]
        self._summary = "Summary of the conversation so far:\n" + "\n".join(lines)
        return True


def lines_of(conversation: Conversation, message: Mapping[str, Any]) -> Sequence[str]:
    """What the rule's summary says of a message."""
    dialect = conversation.endpoint.dialect
    reading, text = dialect.read(message), dialect.text(message)
    if reading.role is Role.TOOL:
        return [f"result: {text}"] if len(text) <= RESULT else []
    said = [f"{reading.role.value}: {text}"] if text else []
    return [*said, *(f"called {call.name} {call.arguments[:CALL]}" for call in reading.calls)]
