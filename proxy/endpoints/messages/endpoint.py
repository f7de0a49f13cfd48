"""The endpoint of Messages: what members and headers mean, the proxy's own calls, and markers of the prompt cache.

A request has at most four markers, and those for an hour stand before those for 5 minutes. A client marks where its own
history may be cached. In a view the markers of replaced messages are gone, so the head, which stays the same from turn
to turn, gets one, if the client marks anything and has one left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from proxy.endpoints.endpoint import (
    Endpoint,
    MalformedElement,
    Question,
    SessionHint,
    Values,
    any_session_headers,
    written,
)
from proxy.endpoints.messages import hidden_calls, replies
from proxy.endpoints.messages.counter import MessagesCounter
from proxy.endpoints.messages.hidden_calls import MessagesSplicer
from proxy.endpoints.messages.replies import blocks_of, text_of
from proxy.http.headers import Headers
from proxy.reasons import Reason
from proxy.values import json_or_none
from strategies.core.effects import Answer, Failure
from strategies.core.messages import dump
from strategies.core.transcript import Transcript
from strategies.dialects.messages import MESSAGES

_TEXTS = ("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use")
"""Blocks whose bytes bound their tokens; a picture of a few bytes may cost thousands, and so may a reference."""
_SESSION, _AGENT = b"x-claude-code-session-id", b"x-claude-code-agent-id"


def look(value: object) -> tuple[str, bool]:
    """The role of a message, and whether its content is text only; raises `MalformedElement`."""
    if not isinstance(value, dict):
        raise MalformedElement("must be an object.")
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str):
        raise MalformedElement("has no 'role', or one that is no string.", ".role")
    return role, _are_texts(content)


def _are_texts(content: object) -> bool:
    return not isinstance(content, list) or all(map(_is_text, content))


def _is_text(block: object) -> bool:
    if not isinstance(block, Mapping):
        return isinstance(block, str)
    kind = block.get("type")
    return kind in _TEXTS or (kind == "tool_result" and _are_texts(block.get("content")))


def offers_tools(values: Values, _: Transcript) -> bool:
    """Whether a request offers tools."""
    return bool(values.get("tools"))


def server_state(values: Values, _roles: Iterable[str]) -> Reason | None:
    """Why a request must pass as it came: the server keeps its history as a thread; None where all of it is here."""
    return Reason.SERVER_STATE if values.get("thread") else None


def keeps_reasoning(values: Values) -> bool:
    """Whether thinking is in the manual mode, in which a turn that is not over must begin with the model's thinking.

    Only models that do not check what it stands behind have this mode.
    """
    thinking = values.get("thinking")
    return isinstance(thinking, Mapping) and thinking.get("type") == "enabled"


def compacts_by_usage(headers: Headers) -> bool:
    """Whether the client is Claude Code."""
    return any(name == _SESSION or (name == b"user-agent" and b"claude-c" in value) for name, value in headers)


def is_subagent(headers: Headers) -> bool:
    """Whether a subagent of Claude Code asks."""
    return any(name == _AGENT and value for name, value in headers)


def session_hints(headers: Headers, values: Values) -> Iterator[SessionHint]:
    """The ids of the session headers, and the one inside of the user's id, which Claude Code writes as JSON.

    Its subagents send the session of the agent that started them, and their own id in another header.
    """
    named = dict(reversed(headers))
    if session := named.get(_SESSION):
        parts = (session, named[_AGENT]) if named.get(_AGENT) else (session,)
        yield SessionHint(_SESSION.decode(), b"/".join(parts).decode("latin-1"))
    yield from any_session_headers(headers)
    metadata = values.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    inner = json_or_none(user) if isinstance(user, str) and user.startswith("{") else None
    if isinstance(inner, Mapping):
        yield SessionHint("metadata.user_id", inner.get("session_id"))


# -- the proxy's own calls -----------------------------------------------------------------------------------------

_FINISHES = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


def body_of(question: Question, limit: str) -> bytes:
    """The body of a request, with the bound on the answer's length under the name `limit`.

    Members of a view that say nothing are left out: this server refuses `"system": null`.
    """
    members = {"model": json.dumps(question.model), limit: str(question.max_tokens)}
    members |= {name: value for name, value in question.members.items() if value.strip() != "null"}
    if question.view is None and question.system:
        members["system"] = json.dumps(question.system)
    if question.has_tools:
        members["tool_choice"] = '{"type":"none"}'
    if question.temperature is not None:
        members["temperature"] = json.dumps(question.temperature)
    members["messages"] = _messages(question)
    return written(members)


def _messages(question: Question) -> str:
    if question.view is None:
        # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
        return json.dumps([{"role": "user", "content": question.user}])
    return question.continued(question.view, MESSAGES, ("user",))


def answers_in(document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
    """The only answer in a message; None if the document is none. It is said to have cost `tokens`."""
    if not isinstance(document.get("content"), list):
        return None
    reason = str(document.get("stop_reason"))
    called = any(block.get("type") == "tool_use" for block in blocks_of(document))
    return [Answer(text_of(document), _FINISHES.get(reason, reason), tokens, called)]


# -- markers of the prompt cache -----------------------------------------------------------------------------------

MAX_MARKERS = 4
_KEY = "cache_control"
_MARK = b'"cache_control"'


def with_marker(values: Values, elements: Sequence[bytes], place: int) -> bytes | None:
    """The element at a place, which ends the head, with a marker on its last block; None where it gets none."""
    automatic = values.get(_KEY)
    before = [*_markers(values.get("tools")), *_markers(values.get("system")), *_marked(elements[:place])]
    after = [*_marked(elements[place + 1 :]), *([automatic] if isinstance(automatic, Mapping) else ())]
    if not (before or after) or len(before) + len(after) >= MAX_MARKERS:
        return None
    return _with_marker(elements[place], before[-1] if before else after[0])


def _marked(elements: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for element in elements:
        if _MARK in element:
            message = json_or_none(element)
            yield from _markers(message.get("content") if isinstance(message, Mapping) else None)


def _markers(blocks: object) -> Iterator[Mapping[str, Any]]:
    """The markers of blocks, in order, those inside of results too."""
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, Mapping):
            yield from _markers(block.get("content"))
            if isinstance(marker := block.get(_KEY), Mapping):
                yield marker


def _with_marker(element: bytes, marker: Mapping[str, Any]) -> bytes | None:
    message = json_or_none(element)
    if not isinstance(message, dict) or _MARK in element:
        return None
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
    if not isinstance(blocks, list) or not blocks or not isinstance(blocks[-1], dict):
        return None
    message["content"] = [*blocks[:-1], {**blocks[-1], _KEY: marker}]
    return dump(message).encode("utf-8", "surrogatepass")


# -- the endpoint ------------------------------------------------------------------------------------------------

MESSAGES_ENDPOINT = Endpoint(
    dialect=MESSAGES,
    path="/v1/messages",
    path_ending="/v1/messages",
    list_member="messages",
    look=look,
    server_state=server_state,
    counted_members=("system", "tools", "tool_choice", "output_config"),
    counter=MessagesCounter,
    reply_limits=("max_tokens",),
    offers_tools=offers_tools,
    keeps_reasoning=keeps_reasoning,
    has_one_choice=lambda _values: True,
    usage_probe=lambda _values: {},
    with_marker=with_marker,
    session_hints=session_hints,
    is_subagent=is_subagent,
    compacts_by_usage=compacts_by_usage,
    key_header=(b"x-api-key", b""),
    answer=replies.ANSWER,
    is_greeting=replies.is_greeting,
    last_event_at=replies.last_event_at,
    text_places=replies.TEXT_PLACES,
    items_in=replies.items_in,
    stream_capture=replies.MessagesCapture,
    is_usage_alone=lambda _event: False,
    error_body=replies.error_body,
    error_event=replies.error_event,
    beat=replies.ping,
    as_events=replies.as_events,
    count_path="/v1/messages/count_tokens",
    question=body_of,
    answers=answers_in,
    prompt_members=("system", "tools"),
    lent_headers=(b"anthropic-",),
    tool=hidden_calls.tool,
    tool_use=hidden_calls.tool_use,
    tool_members=hidden_calls.tool_members,
    results=hidden_calls.results,
    said=hidden_calls.said_in,
    joined=hidden_calls.reply_for_client,
    splicer=MessagesSplicer,
)
