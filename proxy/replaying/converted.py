"""Writes a conversation of the chat protocol in another one, so that one recording shows all of them.

System messages at its beginning become the member that the protocol has for them. Results that follow one another are
one message where the protocol has it so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.table import endpoint_named
from proxy.replaying.recorded import Conversation, Message
from proxy.values import json_or_none, word_at
from strategies.dialects.chat import CHAT, SYSTEM_ROLES, call_fields, content_text
from strategies.dialects.responses import RESPONSES

_SYSTEM = {"messages": "system", "responses": "instructions"}


def in_protocol(conversation: Conversation, name: str) -> Conversation:
    """A conversation of the chat protocol in the protocol `name`; its questions point to the same texts."""
    if name == CHAT.name:
        return conversation
    endpoint, messages = endpoint_named(name), conversation.messages
    first = next((i for i, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES), len(messages))
    written: list[Message] = []
    places: dict[int, int] = {}
    for indices, elements in _groups(messages, first, endpoint):
        is_one = len(elements) == 1
        places |= {index: len(written) + (0 if is_one else number) for number, index in enumerate(indices)}
        written += elements
    questions = [
        asked._replace(places=[places[place] for place in asked.places])
        for asked in conversation.questions
        if places.keys() >= set(asked.places)
    ]
    said = "\n\n".join(content_text(message.get("content")) for message in messages[:first])
    tools, members = [_tool(tool, endpoint) for tool in conversation.tools], {_SYSTEM[name]: said} if said else {}
    return replace(conversation, messages=written, tools=tools, questions=questions, endpoint=endpoint, members=members)


def _groups(
    messages: Sequence[Message], first: int, endpoint: Endpoint
) -> Iterator[tuple[Sequence[int], Sequence[Message]]]:
    """The indices of messages from the first one on, and the elements that they become: results together."""
    for is_result, group in groupby(range(first, len(messages)), lambda i: messages[i]["role"] == "tool"):
        indices = list(group)
        if is_result:
            texts = [content_text(messages[i].get("content")) for i in indices]
            ids = [word_at(messages[i], "tool_call_id") for i in indices]
            yield indices, endpoint.results(list(zip(ids, texts, strict=True)))
        else:
            yield from (([i], _elements(messages[i], endpoint)) for i in indices)


def _elements(message: Message, endpoint: Endpoint) -> Sequence[Message]:
    """The elements of a message that is no result."""
    dialect, text = endpoint.dialect, content_text(message.get("content"))
    if message["role"] != "assistant":
        return [dialect.user(text)]
    calls = [_call(*fields, endpoint) for fields in call_fields(message)]
    if endpoint.dialect is RESPONSES:
        return [*([dialect.assistant(text)] if text or not calls else ()), *calls]
    said = [{"type": "text", "text": text}] if text or not calls else []
    return [{"role": "assistant", "content": [*said, *calls]}]


def _call(id: str, name: str, arguments: str, endpoint: Endpoint) -> Message:
    if endpoint.dialect is RESPONSES:
        return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}
    given = json_or_none(arguments)
    return {"type": "tool_use", "id": id, "name": name, "input": given if isinstance(given, dict) else {}}


def _tool(tool: Any, endpoint: Endpoint) -> Any:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return tool
    parameters = function.get("parameters")
    told = word_at(function, "name"), word_at(function, "description")
    return json_or_none(endpoint.tool(*told, parameters if isinstance(parameters, Mapping) else {"type": "object"}))
