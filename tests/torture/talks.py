"""Recorded conversations for many clients at once: all outgrow the window, and each text says whose it is.

Every message ends with a mark of its conversation, so that a text in a view that it does not belong to is seen. Every
second client names its session; the others are known by what they say.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.http.recorded import LONG, SHORT, Conversation, conversations

WINDOW = 8_000
MAX_TURNS = 60
MARK = re.compile(r"<<c\d\d>>")
_LEAST, _MOST = 9_000, 20_000  # tokens, at four characters each, of a conversation that is taken, and of its part

Message = dict[str, Any]


@dataclass(frozen=True)
class Talk:
    """One conversation; `ends` are the lengths of the histories that its client sends, one a turn."""

    index: int
    messages: Sequence[Message]
    ends: Sequence[int]

    @property
    def mark(self) -> str:
        return f"<<c{self.index:02d}>>"

    @property
    def naming(self) -> list[tuple[str, str]]:
        """The header that names its session, where it has one."""
        return [("X-Condenser-Session", f"talk-{self.index}")] if self.index % 2 else []


def talks(number: int, files: Sequence[Path] = (SHORT, LONG)) -> list[Talk]:
    """The smallest conversations that outgrow the window; skips the test where the recordings are missing."""
    known = [each for file in files for each in conversations(file).values()]
    large = sorted((each for each in known if _tokens(each.messages) > _LEAST), key=lambda each: _tokens(each.messages))
    assert len(large) >= number
    return [_talk(index, each) for index, each in enumerate(large[:number])]


def _talk(index: int, conversation: Conversation) -> Talk:
    ends = [end for end in conversation.requests() if _tokens(conversation.messages[:end]) < _MOST][:MAX_TURNS]
    blank = Talk(index, [], ends)
    return Talk(index, [_marked(each, blank.mark) for each in conversation.messages[: ends[-1]]], ends)


def _tokens(messages: Sequence[Message]) -> int:
    return len(json.dumps(messages)) // 4


def _marked(message: Message, mark: str) -> Message:
    text = message.get("content")
    return {**message, "content": f"{text} {mark}"} if isinstance(text, str) and text else message
