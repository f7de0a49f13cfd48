"""What a strict upstream checks of a message list, and what the design promises of each view."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
REPLACEMENT = "[Condensed history]"
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))


def problems(messages: Sequence[Message]) -> set[str]:
    """Why a strict upstream would answer 400; empty where it would not."""
    found: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        found.update(_shape(message))
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            if call in waiting:
                waiting.remove(str(call))
            else:
                found.add(f"result of {call} without a call")
            continue
        found.update(f"call {call} without a result" for call in waiting)
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return found


def _shape(message: Message) -> Iterator[str]:
    role = message.get("role")
    if role not in _ROLES:
        yield f"role {role!r}"
    if message.get("tool_calls") == []:
        yield "an empty list of calls"
    if message.get("content") in (None, "", []) and not (role == "assistant" and message.get("tool_calls")):
        yield f"{role} message without content"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield "tool message without an id"
    for call in message.get("tool_calls") or ():
        if not _is_json(call["function"]["arguments"]):
            yield f"arguments of {call['id']} are no JSON"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def newest_round(messages: Sequence[Message]) -> list[Message]:
    """The last assistant message and all that follows it."""
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return list(messages[places[-1] :]) if places else []


def users(messages: Sequence[Message]) -> list[Message]:
    """The user messages that are the client's own."""
    return [each for each in messages if each["role"] == "user" and not is_replacement(each)]


def is_replacement(message: Message) -> bool:
    """Whether it is the record that stands for condensed history."""
    return str(message.get("content", "")).startswith(REPLACEMENT)


def assert_view(view: Sequence[Message], transcript: Sequence[Message]) -> None:
    """All that holds of every forwarded list, whatever was done to it."""
    assert problems(view) <= problems(transcript)
    assert [each for each in view if each["role"] in ("system", "developer")] == [
        each for each in transcript if each["role"] in ("system", "developer")
    ]
    assert sum(is_replacement(each) for each in view) <= 1
    assert_task(view, transcript)
    assert not users(transcript) or users(view)[-1] == users(transcript)[-1]
    newest = newest_round(transcript)
    assert list(view[len(view) - len(newest) :]) == newest


def assert_task(view: Sequence[Message], transcript: Sequence[Message]) -> None:
    """The first user message stands, at least its head and its tail."""
    tasks = users(transcript)
    if not tasks:
        return
    shown = users(view)[0]
    if shown != tasks[0]:
        was, now = str(tasks[0]["content"]), str(shown["content"])
        assert len(now) < len(was)
        assert now[:40] == was[:40]
        assert now[-40:] == was[-40:]
