"""What a strict upstream checks of a message list, what the design promises of each view, and of each error."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy import tool_output_patterns

Message = Mapping[str, Any]
REPLACEMENTS = ("[Condensed history]", "## Context Summary")
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
_BEGINS, _ENDS = tool_output_patterns()


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
    """What a person said: neither records of ours nor the output of tools that an agent sends as the user's."""
    before = [None, *messages]
    pairs = zip(before, messages, strict=False)
    return [
        each for last, each in pairs if each["role"] == "user" and not is_replacement(each) and not _out(last, each)
    ]


def _out(last: Message | None, message: Message) -> bool:
    follows = last is not None and (last["role"] in ("assistant", "tool") or is_result(last))
    return follows and is_result(message)


def is_result(message: Message) -> bool:
    """Whether it has the form of a tool's output."""
    text = message.get("content")
    is_output = isinstance(text, str) and bool(_BEGINS.match(text) or _ENDS.search(text))
    return message["role"] == "tool" or (message["role"] == "user" and is_output)


def is_replacement(message: Message) -> bool:
    """Whether it is the record that stands for condensed history."""
    return str(message.get("content", "")).startswith(REPLACEMENTS)


def assert_stands(view: Sequence[Message], transcript: Sequence[Message]) -> None:
    """What holds of every forwarded list, whatever was done to it; the newest round is the caller's to check."""
    assert problems(view) <= problems(transcript)
    assert systems(view) == systems(transcript)
    assert sum(is_replacement(each) for each in view) <= 1
    assert_task(view, transcript)
    assert all(each in view for each in users(transcript)[-1:])


def assert_view(view: Sequence[Message], transcript: Sequence[Message]) -> None:
    """What holds of every forwarded list whose newest round fits."""
    assert_stands(view, transcript)
    newest = newest_round(transcript)
    assert list(view[len(view) - len(newest) :]) == newest


def systems(messages: Sequence[Message]) -> list[Message]:
    """The system and developer messages."""
    return [each for each in messages if each["role"] in ("system", "developer")]


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


def assert_openai_error(body: bytes) -> dict[str, Any]:
    """The envelope, with every member there and absent values as JSON null."""
    payload = json.loads(body)
    assert list(payload) == ["error"]
    assert set(payload["error"]) == {"message", "type", "param", "code"}
    assert isinstance(payload["error"]["message"], str)
    assert isinstance(payload["error"]["type"], str)
    assert "None" not in payload["error"].values()
    found: dict[str, Any] = payload["error"]
    return found
