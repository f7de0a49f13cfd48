"""Messages requests: what the members of a body and the headers mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from proxy.endpoints.endpoint import MalformedElement, SessionHint, Values, any_session_headers
from proxy.http.headers import Headers
from proxy.reasons import Reason
from proxy.values import json_or_none
from strategies.core.transcript import Transcript

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
