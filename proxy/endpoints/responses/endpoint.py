"""The endpoint of Responses: what the members of a request mean, and the bodies and answers of own calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proxy.endpoints.endpoint import Endpoint, MalformedElement, Question, Values, openai_session_hints, written
from proxy.endpoints.responses import hidden_calls, replies
from proxy.endpoints.responses.counter import ResponsesCounter
from proxy.endpoints.responses.hidden_calls import ResponsesSplicer
from proxy.endpoints.responses.replies import output_of, text_of
from proxy.http.headers import Headers
from proxy.reasons import Reason
from proxy.values import word_at
from strategies.core.effects import Answer, Failure
from strategies.core.transcript import Transcript
from strategies.dialects.responses import PINNED, RESPONSES

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


# -- the proxy's own calls -----------------------------------------------------------------------------------------

_FINISHES = {"completed": "stop", "max_output_tokens": "length"}


def body_of(question: Question, limit: str) -> bytes:
    """The body of a request, with the bound on the answer's length under the name `limit`; nothing is to be kept."""
    members = {"model": json.dumps(question.model), limit: str(question.max_tokens), "store": "false"}
    members |= question.members
    if question.view is None and question.system:
        members["instructions"] = json.dumps(question.system)
    if question.has_tools:
        members["tool_choice"] = '"none"'
    if question.temperature is not None:
        members["temperature"] = json.dumps(question.temperature)
    members["input"] = question.continued(question.view or "[]", RESPONSES)
    return written(members)


def answers_in(document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
    """The only answer in a response; None if the document is none. It is said to have cost `tokens`."""
    if not isinstance(document.get("output"), list):
        return None
    items = output_of(document)
    reason = word_at(document.get("incomplete_details"), "reason") or word_at(document, "status")
    called = any(str(item.get("type")).endswith("_call") for item in items)
    return [Answer(text_of(items), _FINISHES.get(reason, reason), tokens, called)]


# -- the endpoint ------------------------------------------------------------------------------------------------

RESPONSES_ENDPOINT = Endpoint(
    dialect=RESPONSES,
    path="/v1/responses",
    path_ending="/responses",
    list_member="input",
    look=look,
    from_text=lambda text: {"role": "user", "content": text},
    list_is_optional=True,
    server_state=server_state,
    previous_reply=PREVIOUS,
    is_kept=lambda values: values.get("store") is not False,
    counted_members=("instructions", "tools", "text"),
    counter=ResponsesCounter,
    reply_limits=("max_output_tokens",),
    offers_tools=offers_tools,
    has_one_choice=lambda _values: True,
    usage_probe=lambda _values: {},
    session_hints=openai_session_hints,
    compacts_by_usage=compacts_by_usage,
    answer=replies.ANSWER,
    is_greeting=replies.is_greeting,
    last_event_at=replies.last_event_at,
    last_event_has_data=True,
    text_places=replies.TEXT_PLACES,
    items_in=replies.items_in,
    stream_capture=replies.ResponsesCapture,
    is_usage_alone=lambda _event: False,
    error_body=lambda error: error.to_json(),
    error_event=replies.error_event,
    beat=replies.comment,
    as_events=replies.as_events,
    count_path="/v1/responses/input_tokens",
    counted=lambda tokens: {"object": "response.input_tokens", "input_tokens": tokens},
    question=body_of,
    answers=answers_in,
    prompt_members=("instructions", "tools", "text"),
    lent_headers=(b"openai-",),
    tool=hidden_calls.tool,
    tool_use=hidden_calls.tool_use,
    tool_members=hidden_calls.tool_members,
    results=hidden_calls.results,
    said=hidden_calls.said_in,
    joined=hidden_calls.reply_for_client,
    splicer=ResponsesSplicer,
)
