"""Servers that take less than OpenAI's: what they check of a message list, each in the words of one that does."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Body = Mapping[str, Any]
Demand = Callable[[Sequence[Body]], str]


def alternation(messages: Sequence[Body]) -> str:
    """As chat templates have it: user and assistant take turns; calls and their results do not count."""
    turns = [each["role"] for each in _without_systems(messages) if each["role"] != "tool" and not _calls(each)]
    expected = ["user", "assistant"] * len(turns)
    wrong = turns != expected[: len(turns)]
    return "Conversation roles must alternate user/assistant/user/assistant/..." if wrong else ""


def sides(messages: Sequence[Body]) -> str:
    """As some services have it: the assistant takes turns with user and tools."""
    roles = [each["role"] for each in _without_systems(messages)]
    pairs = list(pairwise(roles))
    wrong = any(one == other != "tool" for one, other in pairs) or roles[:1] == ["assistant"]
    said = "After the (optional) system message(s), user or tool message(s) should alternate with assistant message(s)."
    return said if wrong else ""


def no_user_after_tool(messages: Sequence[Body]) -> str:
    roles = [each["role"] for each in messages]
    wrong = ("tool", "user") in pairwise(roles)
    return "Unexpected role 'user' after role 'tool'" if wrong else ""


def systems_first(messages: Sequence[Body]) -> str:
    wrong = any(each["role"] == "system" for each in _without_systems(messages))
    return "System message must be at the beginning." if wrong else ""


def no_names(messages: Sequence[Body]) -> str:
    places = [i for i, each in enumerate(messages) if each["role"] == "assistant" and "name" in each]
    return f"'messages.{places[0]}' : property 'name' is unsupported, did you mean 'role'?" if places else ""


DEMANDS: tuple[Demand, ...] = (alternation, sides, no_user_after_tool, systems_first)


def refusal_of(messages: Sequence[Body], demands: Iterable[Demand] = DEMANDS) -> str:
    """What a server with these demands answers; "" where it takes the list. Unless told, those that are learned."""
    return next((said for demand in demands if (said := demand(messages))), "")


def accepted(messages: Iterable[Body]) -> list[dict[str, Any]]:
    """As much of a conversation as a server with all demands takes: what it would refuse is left out."""
    kept: list[dict[str, Any]] = []
    waiting: list[str] = []
    for each in messages:
        message = {**each, "content": each.get("content") or "."}
        message.pop("name", None)
        is_result = message["role"] == "tool"
        is_due = message.get("tool_call_id") in waiting if is_result else not waiting
        calls = _calls(message)
        if is_due and (is_result or calls or not refusal_of([*kept, message])) and _may_follow(kept, message):
            kept.append(message)
            waiting = [call["id"] for call in calls] if not is_result else _without(waiting, message["tool_call_id"])
    return kept[: _end_of_last_round(kept)] if waiting else kept


def _may_follow(kept: Sequence[Body], message: Body) -> bool:
    return not refusal_of([*kept, message], (sides, no_user_after_tool, systems_first))


def _without(waiting: list[str], answered: str) -> list[str]:
    return [each for each in waiting if each != answered]


def _end_of_last_round(messages: Sequence[Body]) -> int:
    return max((i for i, each in enumerate(messages) if _calls(each)), default=len(messages))


def _without_systems(messages: Sequence[Body]) -> list[Body]:
    """The list from the first message on that is no system message."""
    first = next((i for i, each in enumerate(messages) if each["role"] != "system"), len(messages))
    return list(messages[first:])


def _calls(message: Body) -> list[Any]:
    return list(message.get("tool_calls") or ())
