"""What others do without a model, as rows to compare with: a way to show the history, played request by request.

CliffCompaction's rule is written from its description (EmbeddedLLM/pi-cliffcompaction, DESIGN.md; PyPI cliffcompaction
0.1.0). Below the trigger the client's messages go on. Above it the prompt becomes what stood before the first assistant
message, one user message, and the newest three assistant steps. That message is mechanical: what users and the
assistant said, calls as their name and 150 characters, results of up to 500 characters. Earlier summaries are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.commands.replaying.measures import (
    ForwardedMessage,
    ReplayedConversation,
    ReplayedRequest,
    common_prefix,
    size,
)
from proxy.commands.replaying.play import Player, kept_in, request_ends
from proxy.commands.replaying.recorded import Conversation, Message
from proxy.reasons import Action
from strategies.core.messages import Role

STEPS = 3
CALL, RESULT = 150, 500  # characters
Show = Callable[[int], Sequence[Message]]
"""The messages that are forwarded for a request whose history are the first so many."""


def play(player: Player, conversation: Conversation, show: Show) -> ReplayedConversation:
    """A conversation whose requests are shown in some way; a shorter prompt than the one before counts as condensed."""
    overhead, usable = player.overhead(conversation), player.budget().usable
    end, before, requests = 0, list[ForwardedMessage](), list[ReplayedRequest]()
    for end in request_ends(conversation):
        sent = player.forwarded(conversation, show(end))
        requests.append(
            ReplayedRequest(
                sent_tokens=overhead + size(player.forwarded(conversation, conversation.messages[:end])),
                message_tokens=size(sent),
                shared_tokens=common_prefix(before, sent),
                overhead_tokens=overhead,
                usable_tokens=usable,
                milliseconds=0.0,
                action=Action.CONDENSED if size(sent) < size(before) else Action.PASSED,
            )
        )
        before = sent
    return kept_in(conversation, end, before, requests)


def direct(player: Player, conversation: Conversation) -> ReplayedConversation:
    """The conversation as the client sent it."""
    return play(player, conversation, lambda end: conversation.messages[:end])


def play_by_rule(player: Player, conversation: Conversation) -> ReplayedConversation:
    """The conversation under CliffCompaction's rule, at our trigger."""
    messages, user = conversation.messages, conversation.endpoint.dialect.user
    most = player.budget().trigger - player.overhead(conversation)
    roles = [conversation.endpoint.dialect.read(message).role for message in messages]
    head = cut = roles.index(Role.ASSISTANT) if Role.ASSISTANT in roles else len(roles)
    summary: list[Message] = []

    def show(end: int) -> Sequence[Message]:
        nonlocal cut, summary
        shown = [*messages[:head], *summary, *messages[cut:end]]
        steps = [place for place in range(cut, end) if roles[place] is Role.ASSISTANT]
        if size(player.forwarded(conversation, shown)) <= most or len(steps) <= STEPS:
            return shown
        gone, cut = messages[cut : steps[-STEPS]], steps[-STEPS]
        lines = [line for message in gone for line in lines_of(conversation, message)]
        summary = [user("Summary of the conversation so far:\n" + "\n".join(lines))]
        return [*messages[:head], *summary, *messages[cut:end]]

    return play(player, conversation, show)


def lines_of(conversation: Conversation, message: Mapping[str, Any]) -> Sequence[str]:
    """What the rule's summary says of a message."""
    dialect = conversation.endpoint.dialect
    reading, text = dialect.read(message), dialect.text(message)
    if reading.role is Role.TOOL:
        return [f"result: {text}"] if len(text) <= RESULT else []
    said = [f"{reading.role.value}: {text}"] if text else []
    return [*said, *(f"called {call.name} {call.arguments[:CALL]}" for call in reading.calls)]
