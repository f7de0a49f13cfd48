"""The endpoint of Responses: how requests, replies and events are read, and how the proxy's own are written. Pure.

The server refuses reasoning without the item that follows it. So reasoning directly before a hidden call is hidden too,
and goes back to the model with the call. The events of reasoning wait until the next item shows whether it is a hidden
call; if it is, the client gets neither.

Events pass as they come, except that their numbers count only the events and items that the client gets. The last event
holds the whole response, with the items of all replies of a search (`hidden_calls`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.http.headers import Headers
from proxy.protocols.counter import PER_MESSAGE, REPLY_PRIMING, SCHEMA_FRAME, PartsCounter, loaded_tools
from proxy.protocols.endpoint import Compacting, Endpoint, MalformedElement, Values
from proxy.protocols.hidden_calls import NAME, NO_ANSWER, HiddenCall, HiddenRound, Said, Splicer, rewritten, with_usage
from proxy.protocols.replies import Items, Json, StreamCapture, TextPlaces, named_event
from proxy.reasons import Reason
from proxy.tokens.counter import Opaque
from proxy.values import count_at, json_or_none, list_at, object_at, objects_at, word_at
from strategies.core.effects import Answer, Failure
from strategies.core.messages import Message, Role, dump
from strategies.core.transcript import Transcript
from strategies.dialects.responses import PINNED, REASONING, RESPONSES

ANSWER = re.compile(rb'"object"\s*:\s*"response"|"type"\s*:\s*"response\.(?!failed)[a-z_.]+"')
GREETINGS = ("response.created", "response.in_progress", "response.queued")
ENDINGS = ("response.completed", "response.incomplete", "response.failed")
"""The types of events that end a stream; each has the whole response."""


def text_of(items: Iterable[Mapping[str, Any]]) -> str:
    """The texts of the messages among some items, joined."""
    parts = (part for item in items if item.get("type") == "message" for part in objects_at(item, "content"))
    return "".join(word_at(part, "text") for part in parts)


def _text_of_event(document: Any) -> str:
    return word_at(document, "delta") if word_at(document, "type") == "response.output_text.delta" else ""


TEXT_PLACES = TextPlaces(b"delta", lambda document: text_of(objects_at(document, "output")), _text_of_event)


@dataclass(slots=True)
class ResponsesCapture(StreamCapture):
    """Captures a stream, whose last event holds the whole response."""

    _response: object = None

    def _add(self, data: str) -> None:
        # Only the last event is parsed: it repeats what the others say.
        if any(ending in data for ending in ENDINGS):
            event = json_or_none(data)
            if word_at(event, "type") in ENDINGS:
                self._response = event.get("response")

    def items(self) -> Items:
        return items_in(self._response)


def items_in(response: object) -> Items:
    return objects_at(response, "output") if word_at(response, "status") in ("completed", "incomplete") else ()


# -- hidden calls ---------------------------------------------------------------------------------------------------


_ENDED = (None, "completed", "incomplete")  # statuses of replies that did not fail; some servers send none
_CALLS = ("function_call", "custom_tool_call", "computer_call", "local_shell_call")
NOTHING_SAID: Json = {
    "type": "message",
    "id": "msg_no_answer",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": NO_ANSWER, "annotations": [], "logprobs": []}],
}


def _silence(index: int) -> Iterator[Json]:
    """The events of `NOTHING_SAID` at a place, without their numbers in the stream."""
    place = {"output_index": index}
    text = {**place, "item_id": NOTHING_SAID["id"], "content_index": 0, "logprobs": []}
    yield {"type": "response.output_item.added", **place, "item": NOTHING_SAID}
    yield {"type": "response.output_text.delta", **text, "delta": NO_ANSWER}
    yield {"type": "response.output_text.done", **text, "text": NO_ANSWER}
    yield {"type": "response.output_item.done", **place, "item": NOTHING_SAID}


@dataclass(frozen=True, slots=True)
class SaidItems(Said):
    complete = (None, "completed")
    items: Items

    @property
    def text(self) -> str:
        return text_of(self.items)

    @property
    def visible(self) -> Items:
        """The items without hidden calls and the reasoning that led to them."""
        hidden = hidden_places(self.items)
        return [item for place, item in enumerate(self.items) if place not in hidden]

    @property
    def memory_calls(self) -> Items:
        return [item for item in self.items if is_hidden(item)]

    @property
    def has_client_calls(self) -> bool:
        """Whether there are calls that the client must answer."""
        return any(item.get("type") in _CALLS and not is_hidden(item) for item in self.items)

    def hidden_round(self, prefix: str) -> HiddenRound:
        """The items that are sent back: the hidden ones, and the messages unless the client has calls to answer.

        The client's own list has the visible items too, later in the request, and no id may occur twice. So messages
        go back without their ids, and other visible items are left out. An id also tells the server which reasoning an
        item followed. So if some reasoning is visible, and is left out, hidden calls go back without their ids and
        without their reasoning.
        """
        hidden, repeats = hidden_places(self.items), not self.has_client_calls
        is_torn = any(item.get("type") == REASONING for item in self.visible)
        sent: list[Mapping[str, Any]] = []
        for place, item in enumerate(self.items):
            if is_hidden(item):
                call = _without(item, "id") if is_torn else item
                sent.append({**call, "call_id": item.get("call_id") or f"{prefix}_{place}"})
            elif place in hidden and not is_torn:
                sent.append(item)
            elif repeats and item.get("type") == "message":
                sent.append(_without(item, "id", "status"))
        calls = [HiddenCall(str(item["call_id"]), item.get("arguments")) for item in sent if is_hidden(item)]
        return HiddenRound(sent, self.text if repeats else "", calls)


def is_hidden(item: Mapping[str, Any]) -> bool:
    """Whether an item is a call of the memory tool."""
    return item.get("type") == "function_call" and item.get("name") == NAME


def hidden_places(items: Items) -> set[int]:
    """The indices of hidden calls, and of the reasoning directly before each."""
    places: set[int] = set()
    for place, item in reversed(list(enumerate(items))):
        if is_hidden(item) or (item.get("type") == REASONING and place + 1 in places):
            places.add(place)
    return places


def _without(item: Mapping[str, Any], *names: str) -> Json:
    return {name: value for name, value in item.items() if name not in names}


def response_for_client(response: Mapping[str, Any], shown: Items, earlier: Sequence[Said]) -> Json:
    """A response with these items, and with the usage of the `earlier` replies."""
    return with_usage({**without_tool(response), "output": list(shown)}, earlier)


def shown_items(said: SaidItems, earlier: Sequence[Said]) -> list[Mapping[str, Any]]:
    """The items of all replies that the client gets; if they say nothing, a message that there is no answer.

    Reasoning alone would be refused when the client sends it back.
    """
    before = [item for reply in earlier if isinstance(reply, SaidItems) for item in reply.visible]
    shown = [*before, *said.visible]
    has_hidden = bool(earlier or said.memory_calls)
    is_silent = all(
        item.get("type") == REASONING or (item.get("type") == "message" and not text_of([item]).strip())
        for item in shown
    )
    return [*shown, NOTHING_SAID] if has_hidden and is_silent and said.finish in _ENDED else shown


def without_tool(response: Mapping[str, Any]) -> Json:
    """A response without the memory tool in its `tools`, which repeat those of the request."""
    tools = response.get("tools")
    if not isinstance(tools, list):
        return dict(response)
    return {**response, "tools": [tool for tool in tools if word_at(tool, "name") != NAME]}


def said_in(response: object, items: Items = ()) -> SaidItems:
    """What the model said in a response; `items` are those that came before, used if it has none."""
    status, usage = word_at(response, "status") or None, object_at(response, "usage") or None
    return SaidItems(objects_at(response, "output") or items, finish=status, usage=usage)


_Event = tuple[list[bytes], Json]  # the lines of an event, and its data


class ResponsesSplicer(Splicer[SaidItems]):
    """Joins replies into one stream."""

    answer = ANSWER
    _sent_events = 0
    _sent_items = 0

    def _reset(self) -> None:
        super()._reset()
        self._items: dict[int, Mapping[str, Any]] = {}
        self._numbers: dict[int, int | None] = {}
        self._held: list[_Event] = []  # of reasoning that may have led to a hidden call
        self._response: Mapping[str, Any] = {}

    @property
    def said(self) -> SaidItems:
        """What the model has said in the reply so far."""
        return said_in(self._response, list(self._items.values()))

    @property
    def document(self) -> Json:
        return {} if self._response.get("error") else {**self._response, "output": self.said.items}

    def rest(self) -> bytes:
        """The bytes for the client when a reply has ended: events that were held back, and an unfinished last one."""
        rest = super().rest()
        return b"" if self.is_continued else self._released() + rest

    def _release(self) -> bytes:
        return self._released() + super()._release()

    def _passed(self, lines: list[bytes], body: Json) -> bytes:
        if word_at(body, "type") in GREETINGS:
            return b"" if self._earlier else self._numbered((lines, body), without_tool)
        if word_at(body, "type") in ENDINGS:
            return self._pass_end((lines, body))
        return self._pass_item_event((lines, body))

    def _pass_item_event(self, event: _Event) -> bytes:
        """The bytes for the client when an event comes that belongs to an item, or to nothing."""
        body = event[1]
        index = body.get("output_index")
        if not isinstance(index, int):
            return self._released() + self._numbered(event)
        if isinstance(item := body.get("item"), Mapping):
            is_new, self._items[index] = index not in self._items, item
            if is_new and is_hidden(item):
                self._held.clear()
                self._numbers[index] = None
        if index in self._numbers:
            return b"" if self._numbers[index] is None else self._numbered(event)
        if self._items.get(index, {}).get("type") == REASONING:
            self._held.append(event)
            return b""
        return self._released() + self._numbered(event)

    def _released(self) -> bytes:
        held, self._held = self._held, []
        return b"".join(map(self._numbered, held))

    def _numbered(self, event: _Event, shown: Callable[[Mapping[str, Any]], Json] = dict) -> bytes:
        """An event with its numbers in the client's stream; `shown` changes the response in it."""
        lines, body = event
        self._has_sent = self._has_sent or word_at(body, "type") not in GREETINGS
        changed = dict(body)
        if isinstance(response := body.get("response"), Mapping):
            changed["response"] = shown(response)
        index = body.get("output_index")
        if isinstance(index, int):
            if index not in self._numbers:
                self._numbers[index], self._sent_items = self._sent_items, self._sent_items + 1
            changed["output_index"] = self._numbers[index]
        if "sequence_number" in body:
            changed["sequence_number"] = self._next_number()
        return rewritten(lines, body, changed)

    def _pass_end(self, event: _Event) -> bytes:
        """The bytes for the client when the event comes that ends a reply; none if another reply follows."""
        self._response, self.is_over = object_at(event[1], "response"), True
        if self.is_continued:
            return b""
        released, shown = self._released(), shown_items(self.said, self._earlier)
        added = _silence(self._sent_items) if shown[-1:] == [NOTHING_SAID] else ()
        written = b"".join([named_event({**event, "sequence_number": self._next_number()}) for event in added])
        last = self._numbered(event, lambda whole: response_for_client(whole, shown, self._earlier))
        return released + written + last

    def _next_number(self) -> int:
        self._sent_events += 1
        return self._sent_events - 1


_UNSEEN = ("type", "id", "call_id", "status", "role")
_TEXTS = frozenset(  # the items of the vendor's tools that are text
    f"{name}_{kind}"
    for name in ("local_shell", "shell", "apply_patch", "computer", "web_search", "file_search", "mcp", "tool_search")
    for kind in ("call", "call_output")
) | {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction_trigger"}
TEXT_ITEMS = frozenset(  # the items that cost no more tokens than they have bytes
    ("reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
).union(_TEXTS, ("tool_search_output", "additional_tools"))


# -- tokens --------------------------------------------------------------------------------------------------------


class ResponsesCounter(PartsCounter):
    """Counts the prompt tokens of a Responses request.

    Theory of operation. The models are those of chat, and so are the formulas: three tokens frame a message, and the
    model sees tools as text of the same form (`protocols/counter.py`). A call and its output are each framed like a
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
                arguments = body.get("arguments", body.get("input"))
                return PER_MESSAGE + self.string(body.get("name")) + self.string(arguments)
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
        pictures = sum(self.image(each.get("url"), opaque) for each in outputs if each.get("type") == "image")
        return pictures + self.string(body.get("code")) + sum(self.string(each.get("logs")) for each in outputs)

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
_SERVER_STATE = ("previous_response_id", "conversation", "prompt")
"""Members that make the server put something before the list that the proxy does not know."""
_FINISHES = {"completed": "stop", "max_output_tokens": "length"}
_METADATA = b"x-codex-turn-metadata"
_TRIGGER, COMPACTION = "compaction_trigger", "compaction"
_SEQUENCE = re.compile(rb'"sequence_number": ?(\d+)')


def _is_trigger(item: Message) -> bool:
    return _TRIGGER.encode() in item.data and item.body.get("type") == _TRIGGER


# -- the endpoint --------------------------------------------------------------------------------------------------


class ResponsesEndpoint(Endpoint):
    """The Responses API."""

    dialect = RESPONSES
    path = "/v1/responses"
    path_ending = "/responses"
    list_member = "input"
    list_is_optional = True
    text_parts = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
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
    management_member = "context_management"
    count_path = "/v1/responses/input_tokens"
    prompt_members = ("instructions", "tools", "text")
    system_member = "instructions"
    format_place = ("text", "format")
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
        output = value.get("output")
        parts = [output] if isinstance(output, Mapping) else list_at(value, "output")
        is_text = kind in TEXT_ITEMS and not is_sealed and all(map(self._is_text, parts))
        return "developer" if kind in PINNED else kind, is_text

    def server_state(self, values: Values, roles: Iterable[str]) -> Reason | None:
        if any(values.get(member) is not None for member in _SERVER_STATE):
            return Reason.SERVER_STATE
        return Reason.UNRESOLVED_REFERENCE if _REFERENCE in roles else None

    def compact_threshold(self, values: Values) -> int | None:
        wanted = (each for each in objects_at(values, self.management_member) if each.get("type") == COMPACTION)
        return next(filter(None, (count_at(each, "compact_threshold") for each in wanted)), None)

    def aside(self, headers: Headers, values: Values, transcript: Transcript) -> Compacting | None:
        """Codex also says so in a header, whatever its prompt is."""
        if transcript.systems and _is_trigger(transcript.systems[-1][1]):
            return Compacting.SIGNAL
        metadata = json_or_none(next((value for name, value in headers if name == _METADATA), b""))
        ends_with_user = bool(transcript.chain) and transcript.chain[-1].role is Role.USER
        if ends_with_user and word_at(metadata, "request_kind") == COMPACTION:
            return Compacting.PROMPT
        return super().aside(headers, values, transcript)

    def offers_tools(self, values: Values, systems: Iterable[bytes]) -> bool:
        return bool(values.get("tools")) or any(b'"additional_tools"' in each for each in systems)

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
