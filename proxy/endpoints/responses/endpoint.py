"""The endpoint of Responses: how requests, replies and events are read, and how the proxy's own are written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING, SCHEMA_FRAME, PartsCounter, loaded_tools
from proxy.endpoints.endpoint import Endpoint, MalformedElement, Values
from proxy.endpoints.hidden_calls import Said
from proxy.endpoints.replies import Items, named_event
from proxy.endpoints.responses.replies import (
    ANSWER,
    GREETINGS,
    TEXT_PLACES,
    ResponsesCapture,
    ResponsesSplicer,
    SaidItems,
    items_in,
    response_for_client,
    said_in,
    shown_items,
    text_of,
)
from proxy.reasons import Reason
from proxy.tokens.counter import Opaque
from proxy.values import json_or_none, list_at, object_at, objects_at, word_at
from strategies.core.effects import Answer, Failure
from strategies.core.messages import dump
from strategies.core.transcript import Transcript
from strategies.dialects.responses import PINNED, RESPONSES

_UNSEEN = ("type", "id", "call_id", "status", "role")
_TEXTS = frozenset(
    f"{name}_{kind}"
    for name in ("local_shell", "shell", "apply_patch", "computer", "web_search", "file_search", "mcp", "tool_search")
    for kind in ("call", "call_output")
) | {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction_trigger"}
"""The items of the vendor's tools that are text."""
TEXT_ITEMS = frozenset(
    ("reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
).union(_TEXTS, ("tool_search_output", "additional_tools"))
"""The items that cost no more tokens than they have bytes."""


class ResponsesCounter(PartsCounter):
    """Counts the prompt tokens of a Responses request.

    Theory of operation. The models are those of chat, and so are the formulas: three tokens frame a message, and the
    model sees tools as text of the same form (`endpoints/counter.py`). A call and its output are each framed like a
    message. Reasoning counts if it came back as text; most is encrypted. The items of the vendor's own tools cost what
    their texts cost, and the picture that a model has made is priced like one that was sent. An item of an unknown type
    counts 0.
    """

    dialect = RESPONSES
    protocol = "responses/"
    seen = ("content", "output", "arguments", "input", "instructions", "summary", "tools", "result")

    def count(self, body: Mapping[str, object], opaque: Opaque) -> int:
        match body.get("type", "message"):
            case "message":
                return PER_MESSAGE + self._content(body.get("content"), opaque)
            case "reasoning":
                # With an encrypted text the summary is for people.
                is_sealed = bool(body.get("encrypted_content"))
                opaque.unpriced |= is_sealed
                text = body.get("content") or (None if is_sealed else body.get("summary"))
                return PER_MESSAGE + self._thought(text, opaque)
            case "function_call" | "custom_tool_call":
                given = body.get("arguments", body.get("input"))
                return PER_MESSAGE + self.string(body.get("name")) + self.string(given)
            case "function_call_output" | "custom_tool_call_output" | "computer_call_output":
                return PER_MESSAGE + self._content(body.get("output"), opaque)
            case "tool_search_output" | "additional_tools":
                return PER_MESSAGE + self._tools(list_at(body, "tools"), opaque)
            case "image_generation_call" | "code_interpreter_call":
                return PER_MESSAGE + self._made(body, opaque)
            case kind if kind in _TEXTS:
                return PER_MESSAGE + self.loose({name: body[name] for name in body.keys() - _UNSEEN}, opaque)
        return PER_MESSAGE + opaque.priced(None)

    def _made(self, body: Mapping[str, object], opaque: Opaque) -> int:
        """Tokens of a picture that a model has made, or of code that it has run."""
        if body.get("type") == "image_generation_call":
            return self.image(body.get("result"), opaque)
        outputs = objects_at(body, "outputs")
        shown = sum(self.image(each.get("url"), opaque) for each in outputs if each.get("type") == "image")
        return shown + self.string(body.get("code")) + sum(self.string(each.get("logs")) for each in outputs)

    def count_outside(
        self, values: Mapping[str, object], opaque: Opaque, *, has_system: bool = False, loaded: Collection[str] = ()
    ) -> int:
        """Instructions, tools, a schema, priming."""
        total = REPLY_PRIMING + self._tools(list(loaded_tools(list_at(values, "tools"), loaded)), opaque)
        if instructions := values.get("instructions"):
            total += PER_MESSAGE + self._content(instructions, opaque)
        if isinstance(schema := object_at(object_at(values, "text"), "format").get("schema"), Mapping):
            total += SCHEMA_FRAME + self.json(schema)
        return total


_REFERENCE = "item_reference"
_PREVIOUS = "previous_response_id"
_SERVER_STATE = (_PREVIOUS, "conversation", "prompt")
"""Members that make the server put something before the list that the proxy does not know."""
_FINISHES = {"completed": "stop", "max_output_tokens": "length"}
_SEQUENCE = re.compile(rb'"sequence_number": ?(\d+)')


class ResponsesEndpoint(Endpoint):
    """The Responses API."""

    dialect = RESPONSES
    path = "/v1/responses"
    path_ending = "/responses"
    list_member = "input"
    list_is_optional = True
    text_parts = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
    previous_reply = _PREVIOUS
    counted_members = ("instructions", "tools", "text")
    counter = ResponsesCounter
    reply_limits = ("max_output_tokens",)
    answer = ANSWER
    greetings = GREETINGS
    last_event = re.compile(rb"response\.(?:completed|incomplete|failed)")
    last_event_has_data = True
    text_places = TEXT_PLACES
    stream_capture = ResponsesCapture
    compact_path = "/v1/responses/compact"
    count_path = "/v1/responses/input_tokens"
    prompt_members = ("instructions", "tools", "text")
    system_member = "instructions"
    own_members: Mapping[str, str] = {"store": "false"}
    low_effort: Mapping[str, str] = {"reasoning": '{"effort":"low"}'}
    splicer = ResponsesSplicer

    def from_text(self, text: str) -> Mapping[str, object]:
        return {"role": "user", "content": text}

    def look(self, value: object) -> tuple[str, bool]:
        """The role of an item that has none is its type."""
        kind = (value.get("type") or "message") if isinstance(value, dict) else "message"
        if not isinstance(kind, str):
            raise MalformedElement("has a 'type' that is no string.", ".type")
        if kind == "message" or not isinstance(value, dict):
            return super().look(value)
        is_sealed = value.get("encrypted_content") is not None
        is_text = kind in TEXT_ITEMS and not is_sealed and all(map(self._is_text, list_at(value, "output")))
        return "developer" if kind in PINNED else kind, is_text

    def server_state(self, values: Values, roles: Iterable[str]) -> Reason | None:
        if any(values.get(member) is not None for member in _SERVER_STATE):
            return Reason.SERVER_STATE
        return Reason.UNRESOLVED_REFERENCE if _REFERENCE in roles else None

    def is_kept(self, values: Values) -> bool:
        return values.get("store") is not False

    def offers_tools(self, values: Values, transcript: Transcript) -> bool:
        offers = (b'"additional_tools"' in message.data for _, message in transcript.systems)
        return bool(values.get("tools")) or any(offers)

    # -- replies

    def items_in(self, document: Any) -> Items:
        return items_in(document)

    def written_error(self, document: Any, sent: bytes = b"") -> bytes:
        """SDKs raise an error for an event that has an `error`; the other members are those of the API's own event."""
        error = object_at(document, "error") or {"message": str(document["error"])}
        numbers = _SEQUENCE.findall(sent)
        number = int(numbers[-1]) + 1 if numbers else 0
        members = {name: error.get(name) for name in ("code", "message", "param")}
        return named_event({"type": "error", **members, "error": error, "sequence_number": number})

    def counted(self, tokens: int) -> Mapping[str, object]:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def answers(self, document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
        if not isinstance(document.get("output"), list):
            return None
        items = objects_at(document, "output")
        reason = word_at(document.get("incomplete_details"), "reason") or word_at(document, "status")
        called = any(word_at(item, "type").endswith("_call") for item in items)
        reasoned = any(word_at(item, "type") == "reasoning" for item in items)
        return [Answer(text_of(items), _FINISHES.get(reason, reason), tokens, called, reasoned)]

    # -- the memory tool

    def tool(self, name: str, description: str, parameters: Mapping[str, Any]) -> str:
        return dump({"type": "function", "name": name, "description": description, "parameters": parameters})

    def takes_tool(self, values: Values) -> bool:
        form = object_at(values.get("text"), "format")
        return bool(values.get("tools")) or form.get("type") != "json_schema"

    def results(self, found: Sequence[tuple[str, str]]) -> Items:
        return [{"type": "function_call_output", "call_id": id, "output": text} for id, text in found]

    def said(self, data: bytes) -> SaidItems | None:
        response = json_or_none(data)
        return said_in(response) if isinstance(response, dict) and isinstance(response.get("output"), list) else None

    def joined(self, data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes:
        response = json_or_none(data)
        items = shown_items(said_in(response), earlier if keeps_text else ())
        shown = response_for_client(response, items, earlier)
        return data if shown == response else dump(shown).encode()


RESPONSES_ENDPOINT = ResponsesEndpoint()
