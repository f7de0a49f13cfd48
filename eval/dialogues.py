"""Annotated dialogues: recorded conversations, counted, and questions with the messages that hold the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from proxy.replaying import recorded
from proxy.replaying.recorded import Conversation, Question
from strategies.core.messages import TokenCounter
from strategies.core.transcript import Transcript
from strategies.memory.ranking import Entry, message_entries
from tests.support.planning import counted

MIN_TOKENS = 300
"""Dialogues whose sixteenth has fewer tokens are left out."""
SHARES = (4, 8, 16)


@dataclass(frozen=True)
class Dialogue:
    """One conversation; the places of its questions are those of the transcript's chain, without system messages."""

    id: str
    language: str
    transcript: Transcript
    questions: Sequence[Question]

    @cached_property
    def tokens(self) -> list[int]:
        return [message.tokens for message in self.transcript.chain]

    @cached_property
    def texts(self) -> list[str]:
        return [message.text for message in self.transcript.chain]

    @cached_property
    def entries(self) -> list[Entry]:
        """What can be found; the key is the message's index."""
        return [
            entry
            for place, message in enumerate(self.transcript.chain)
            for entry in message_entries(str(place), message, place)
        ]


def load(path: Path, counter: TokenCounter) -> list[Dialogue]:
    """The conversations in a file that have questions with evidence and are long enough; raises `Unreadable`."""
    found = (_dialogue(each, counter) for each in recorded.load(path) if each.questions)
    return [each for each in found if sum(each.tokens) >= MIN_TOKENS * max(SHARES)]


def _dialogue(conversation: Conversation, counter: TokenCounter) -> Dialogue:
    roles = [message["role"] for message in conversation.messages]
    chained = (index for index, role in enumerate(roles) if role not in ("system", "developer"))
    place = {index: nth for nth, index in enumerate(chained)}
    questions = [each._replace(places=[place[index] for index in each.places]) for each in conversation.questions]
    return Dialogue(conversation.id, conversation.language, counted(conversation.messages, counter), questions)
