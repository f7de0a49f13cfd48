"""A model that searches its memory: replies that call `search_memory`, and what its upstream was asked."""

import json
from collections.abc import Sequence
from typing import Any

from tests.support import replies
from tests.support.recording import Exchange
from tests.support.replies import Chunk, Reply, ToolCall

SEARCH = "search_memory"
CALLED = replies.chunk({}, finish="tool_calls")
TOOL = ("X-Condenser-Memory", "tool")


def search(query: str = "greenhouse key", id: str = "call_m1", **more: Any) -> ToolCall:
    return ToolCall(SEARCH, json.dumps({"query": query, **more}), id)


def reply_of(
    text: str | None, *calls: ToolCall, streamed: bool, usage: tuple[int, int] = (100, 10), id: str = replies.ID
) -> Reply:
    """A reply with text, calls after it, and a usage; streamed or in one piece."""
    if not streamed:
        return replies.completion(text, tool_calls=calls, tokens=usage)
    chunks = [*reply_opening(text), *reply_calls(*calls), CALLED] if calls else replies.text_chunks(text or "")
    return replies.stream(*(renamed(each, id) for each in (*chunks, replies.usage_chunk(*usage))))


def reply_opening(text: str | None) -> list[Chunk]:
    """The beginning of a reply that calls tools: its role, and its text word by word."""
    return [replies.chunk({"role": "assistant", "content": None}), *(replies.text_chunks(text)[1:-1] if text else [])]


def reply_calls(*calls: ToolCall) -> list[Chunk]:
    """The calls of a reply, which still has to finish."""
    return replies.tool_call_chunks(*calls)[1:-1]


def renamed(chunk: Chunk, id: str) -> Chunk:
    return {**chunk, "id": id}


def offers_search(exchange: Exchange) -> bool:
    """Whether the model may call the tool here."""
    body = exchange.json()
    named = [each["function"]["name"] for each in body.get("tools") or () if "function" in each]
    return SEARCH in named and body.get("tool_choice") != "none"


def assembled(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """One message of a stream that is as it must be: one id, one role, calls from 0 on, one finish, one usage."""
    assert len({(each["id"], each["created"], each["model"]) for each in chunks}) == 1
    choices = [choice for each in chunks for choice in each["choices"]]
    assert {choice["index"] for choice in choices} == {0}
    assert [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]] == ["assistant"]
    finishes = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    usages = [each["usage"] for each in chunks if each.get("usage")]
    assert (len(finishes), len(usages)) == (1, 1)
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    calls: list[dict[str, Any]] = []
    for piece in (each for choice in choices for each in choice["delta"].get("tool_calls") or ()):
        if piece["index"] == len(calls):
            calls.append({"id": piece["id"], "type": "function", "function": {**piece["function"]}})
        else:
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "finish": finishes[0], "usage": usages[0]}
    return {**message, "tool_calls": calls} if calls else message


def is_prefix(earlier: Sequence[Any], later: Sequence[Any]) -> bool:
    return list(later[: len(earlier)]) == list(earlier)
