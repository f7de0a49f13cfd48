"""Responses requests: what the members of a body mean."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.endpoints.endpoint import MalformedElement, Values
from proxy.http.headers import Headers
from proxy.reasons import Reason
from proxy.values import word_at
from strategies.core.transcript import Transcript
from strategies.dialects.responses import PINNED

REFERENCE = "item_reference"
_OFFER = b'"additional_tools"'
_OPAQUE = ("compaction", REFERENCE, "image_generation_call", "computer_call_output")
"""Items whose bytes do not bound their tokens."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
PREVIOUS = "previous_response_id"
_SERVER_STATE = (PREVIOUS, "conversation", "prompt")
"""Members by which the server puts something before the list that the proxy does not know."""


def look(value: object) -> tuple[str, bool]:
    """The role of an item, or its type where it has no role of its own, and whether it is text only.

    Raises `MalformedElement`.
    """
    if not isinstance(value, dict):
        raise MalformedElement("must be an object.")
    kind = value.get("type") or "message"
    if not isinstance(kind, str):
        raise MalformedElement("has a 'type' that is no string.", ".type")
    if kind != "message":
        return "developer" if kind in PINNED else kind, kind not in _OPAQUE and _are_texts(value.get("output"))
    role = value.get("role")
    if not isinstance(role, str):
        raise MalformedElement("has no 'role', or one that is no string.", ".role")
    return role, _are_texts(value.get("content"))


def _are_texts(content: object) -> bool:
    return not isinstance(content, list) or all(word_at(part, "type") in _TEXTS for part in content)


def offers_tools(values: Values, transcript: Transcript) -> bool:
    """Whether a request offers tools, in its member or in items."""
    return bool(values.get("tools")) or any(_OFFER in message.data for _, message in transcript.systems)


def compacts_by_usage(headers: Headers) -> bool:
    """Whether the client is Codex."""
    return any(name == b"originator" and value.startswith(b"codex") for name, value in headers)


def server_state(values: Values, roles: Iterable[str]) -> Reason | None:
    """Why a request must pass as it came: the server holds a part of its history; None where all of it is here.

    `roles` are those of the items, as `look` gives them.
    """
    if any(values.get(member) is not None for member in _SERVER_STATE):
        return Reason.SERVER_STATE
    return Reason.UNRESOLVED_REFERENCE if REFERENCE in roles else None
