"""The endpoint of chat: how requests, replies and events are read, and how the proxy's own are written. Pure.

If a request asks for several choices, or says which tool to call, the memory tool is offered all the same, so that the
beginning of the prompt stays the same for the upstream's cache; but its calls are not run.

A later reply of a search (`hidden_calls`) continues with the id, the time and the model of the first one, without the
role. A call is hidden because of its name. Some servers send the name in several deltas, or after the id, so a call is
held back while its name may still become the memory tool's. The client's calls are numbered without the hidden ones; as
long as there is no hidden call, they keep their numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.http.sse import event
from proxy.protocols.counter import PER_MESSAGE, REPLY_PRIMING, SCHEMA_FRAME, PartsCounter, loaded_tools
from proxy.protocols.endpoint import Endpoint, Values
from proxy.protocols.hidden_calls import NAME, NO_ANSWER, HiddenCall, HiddenRound, Said, Splicer, rewritten, with_usage
from proxy.protocols.replies import Items, Json, StreamCapture, TextPlaces
from proxy.tokens.counter import Opaque
from proxy.values import json_or_none, list_at, object_at, objects_at, word_at
from strategies.core.effects import Answer, Failure
from strategies.core.messages import dump
from strategies.dialects.chat import CHAT, RESULT_ROLES

ANSWER = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_MEMBERS = ("role", "content", "refusal", "tool_calls", "function_call", "audio")


def _text(document: Any, member: str) -> str | None:
    """The text of the only choice; "" if there is no choice or no text, None if there may be several choices."""
    choices = document.get("choices", 0) if isinstance(document, Mapping) else 0
    choices = [] if choices is None else choices
    if not isinstance(choices, list) or len(choices) > 1:
        return None
    choice = choices[0] if choices else {}
    if not isinstance(choice, Mapping) or choice.get("index"):
        return None
    message = choice.get(member)
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else ""


TEXT_PLACES = TextPlaces(
    b"content", lambda document: _text(document, "message"), lambda document: _text(document, "delta")
)


@dataclass(slots=True)
class StreamedCall:
    """The part of a tool call that has come so far."""

    index: object  # its number in the upstream's stream
    body: Json = field(default_factory=dict)
    number: object = None  # its number in the client's stream
    is_held: bool = False  # whether it is held back from the client

    def numbered(self, piece: Mapping[str, Any]) -> Mapping[str, Any]:
        """A piece with the client's number; the whole call if it was held back until now."""
        piece, self.is_held = self.body if self.is_held else piece, False
        return piece if piece.get("index") == self.number else {**piece, "index": self.number}


@dataclass(slots=True)
class StreamedMessage:
    """The message that the deltas so far add up to."""

    calls: list[StreamedCall] = field(default_factory=list)
    finish: str | None = None
    _newest: dict[str, StreamedCall] = field(default_factory=dict)
    """The newest call with each number, and each call by its number and id."""
    _judged: int = 0
    _hidden: int = 0
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _others: Json = field(default_factory=dict)

    def add(self, delta: Mapping[str, Any], finish: str | None) -> None:
        """Adds a delta without its calls: texts and lists grow, other values replace earlier ones."""
        self.finish = finish or self.finish
        for key, value in delta.items():
            if key in ("role", "tool_calls") or value is None:
                continue
            if isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
                continue
            before = self._others.get(key)
            if isinstance(value, list) and isinstance(before, list):
                self._others[key] = before + value
            elif key == "function_call" and isinstance(value, Mapping):
                self._others[key] = _joined(before or {}, value)
            else:
                self._others[key] = value

    def add_call(self, piece: Mapping[str, Any]) -> StreamedCall:
        """Adds a piece to the newest call that it can belong to, or begins a new call.

        Some servers give all calls the same number and different ids, so an id and a name may begin another call.
        """
        function, number = object_at(piece, "function"), repr(piece.get("index"))
        names_call = bool(piece.get("id") and function.get("name"))
        call = self._newest.get(f"{number} {piece['id']!r}" if names_call else number)
        if call is None:
            call = self._newest[number] = StreamedCall(piece.get("index"))
            self.calls.append(call)
        if function:
            piece = {**piece, "function": _joined(object_at(call.body, "function"), function)}
        call.body |= {key: value for key, value in piece.items() if key != "index" and value not in (None, "")}
        self._newest[f"{number} {call.body.get('id')!r}"] = call
        return call

    @property
    def hidden_before_newest(self) -> int:
        """How many calls before the newest one are hidden. Each is judged once, when another one has begun."""
        while self._judged < len(self.calls) - 1:
            self._hidden += is_hidden(self.calls[self._judged].body)
            self._judged += 1
        return self._hidden

    @property
    def has_text(self) -> bool:
        return any(self._texts.get("content", ()))

    @property
    def message(self) -> Json:
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        calls = {"tool_calls": [call.body for call in self.calls]} if self.calls else {}
        return {"role": "assistant", "content": None, **self._others, **texts, **calls}


def _joined(so_far: Mapping[str, Any], piece: Mapping[str, Any]) -> Json:
    """A function with one more piece added. Some servers repeat the whole name in each piece."""
    name, more = so_far.get("name") or "", piece.get("name") or ""
    arguments = piece.get("arguments")
    text = arguments if isinstance(arguments, str) else ""
    return {"name": name if more == name else name + more, "arguments": so_far.get("arguments", "") + text}


@dataclass(slots=True)
class ChatCapture(StreamCapture):
    """Captures a stream, which is complete if its first choice has finished and no error came."""

    _message: StreamedMessage = field(default_factory=StreamedMessage)
    _broken: bool = False

    def items(self) -> Items:
        if self._broken or not self._message.finish:
            return ()
        bodies = [call.body for call in self._message.calls]
        calls = [
            {"id": body.get("id", ""), "type": "function", "function": object_at(body, "function")} for body in bodies
        ]
        return (sendable({**self._message.message, "tool_calls": calls or None}),)

    def _add(self, data: str) -> None:
        if data == "[DONE]":
            return
        chunk = json_or_none(data)
        self._broken = self._broken or not isinstance(chunk, dict) or "error" in chunk
        for choice in () if self._broken else chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                delta = choice.get("delta") or {}
                self._message.add(delta, choice.get("finish_reason"))
                for piece in delta.get("tool_calls") or ():
                    self._message.add_call(piece)


def sendable(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message of a reply as a client sends it back: only known members, and only `content` may be null."""
    members = {key: message[key] for key in _MEMBERS if message.get(key) is not None}
    return {"role": "assistant", "content": None, **members}


# -- hidden calls ---------------------------------------------------------------------------------------------------


_IDENTITY = ("id", "created", "model")
MAX_ARGUMENTS = 64 * 1024
"""Characters of a hidden call's arguments that are kept. If it has more, the model is told that they are not JSON."""


@dataclass(frozen=True, slots=True)
class FirstChoice(Said):
    complete = (None, "stop", "tool_calls", "function_call")
    message: Mapping[str, Any]

    @property
    def memory_calls(self) -> list[Mapping[str, Any]]:
        return [call for call in list_at(self.message, "tool_calls") if is_hidden(call)]

    @property
    def has_client_calls(self) -> bool:
        calls = list_at(self.message, "tool_calls")
        return bool(self.message.get("function_call")) or len(self.memory_calls) < len(calls)

    @property
    def text(self) -> str:
        return word_at(self.message, "content")

    def hidden_round(self, prefix: str) -> HiddenRound:
        """The message of a hidden round: the model's own, or only its memory calls if it also calls the client's tools.

        Members that are null are left out, because servers that send them do not accept them back.
        """
        found = self.memory_calls
        calls = [_sendable(call, f"{prefix}_{place}") for place, call in enumerate(found)]
        hidden = [
            HiddenCall(sent["id"], call["function"].get("arguments")) for call, sent in zip(found, calls, strict=True)
        ]
        is_alone = not self.has_client_calls
        members = {key: value for key, value in self.message.items() if value is not None} if is_alone else {}
        message = {"role": "assistant", "content": None, **members, "tool_calls": calls}
        return HiddenRound([message], self.text if is_alone else "", hidden)


def _sendable(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A call in the form that an upstream accepts: with an id, a type, and arguments that are a JSON object."""
    function, arguments = call["function"], call["function"].get("arguments")
    if not (isinstance(arguments, str) and isinstance(json_or_none(arguments), dict)):
        function = {**function, "arguments": "{}"}
    return {**call, "id": call.get("id") or name, "type": "function", "function": function}


def is_hidden(call: object) -> bool:
    """Whether a call is a call of the memory tool."""
    return object_at(call, "function").get("name") == NAME


def may_become_hidden(call: Mapping[str, Any]) -> bool:
    """Whether more of its name may make a call one of the memory tool."""
    function = object_at(call, "function")
    return NAME.startswith(function.get("name") or "") and not function.get("arguments") and "custom" not in call


def finish_for_client(finish: str | None, *, has_calls: bool) -> str | None:
    """The finish reason for the client; `has_calls` tells whether it sees any calls."""
    return "stop" if finish in ("tool_calls", "function_call") and not has_calls else finish


def remove_hidden_calls(choice: dict[str, Any]) -> bool:
    """Removes the hidden calls from a choice, in place. Returns whether there were any."""
    message = choice.get("message") or {}
    calls = list_at(message, "tool_calls")
    client_calls = [call for call in calls if not is_hidden(call)]
    if len(client_calls) == len(calls):
        return False
    if client_calls:
        message["tool_calls"] = client_calls
    else:
        del message["tool_calls"]
        message["content"] = message.get("content") or NO_ANSWER
    choice["finish_reason"] = finish_for_client(choice.get("finish_reason"), has_calls=bool(client_calls))
    return True


class ChatSplicer(Splicer[FirstChoice]):
    """Joins several streams of chat completion chunks into one."""

    answer = ANSWER
    _identity: Json | None = None

    def _reset(self) -> None:
        super()._reset()
        self._choices: dict[int, StreamedMessage] = {}
        self._usage: Mapping[str, Any] | None = None

    @property
    def said(self) -> FirstChoice:
        """The first choice of the reply so far."""
        message = self._choices.get(0) or StreamedMessage()
        return FirstChoice(message.message, finish=self._finish, usage=self._usage)

    @property
    def document(self) -> Json:
        choices = [{"message": each.message, "finish_reason": each.finish} for each in self._choices.values()]
        return {} if self._failed else {"choices": choices, "usage": self._usage}

    def _passed(self, lines: list[bytes], body: Json) -> bytes:
        self._failed = self._failed or bool(body.get("error"))
        self._usage = object_at(body, "usage") or self._usage
        return rewritten(lines, body, self._passed_chunk(body))

    def _passed_chunk(self, body: Json) -> Json | None:
        """The chunk for the client; None for nothing."""
        choices = body.get("choices")
        if self._identity is None and choices:
            self._identity = {key: body[key] for key in _IDENTITY if key in body}
        goes_on = self._earlier and not self._failed
        chunk = {**body, **(self._identity or {})} if goes_on else dict(body)
        if isinstance(choices, list) and choices and all(map(_is_choice, choices)):
            chunk["choices"] = [passed for choice in choices if (passed := self._passed_choice(choice)) is not None]
            if not chunk["choices"]:
                return None
        elif self.is_continued:
            return None
        if object_at(chunk, "usage") and self.is_continued:
            return {**chunk, "usage": None}
        return with_usage(chunk, self._earlier)

    def _passed_choice(self, choice: Json) -> Json | None:
        """The choice of a chunk for the client; None for nothing."""
        index, delta, finish = choice.get("index") or 0, choice.get("delta") or {}, choice.get("finish_reason")
        message = self._choices.setdefault(index, StreamedMessage())
        message.add(delta, finish)
        passed = {key: value for key, value in delta.items() if key != "role" or not self._earlier}
        calls = [call for piece in objects_at(delta, "tool_calls") if (call := self._passed_piece(message, piece))]
        if finish is not None:
            calls += [call.numbered({}) for call in message.calls if call.is_held and not is_hidden(call.body)]
        if calls:
            passed["tool_calls"] = calls
        elif passed.get("tool_calls"):
            del passed["tool_calls"]
        if finish is not None:
            finish = self._passed_finish(message, index, finish)
            if finish not in (None, choice["finish_reason"]) and not (self._has_earlier_text or message.has_text):
                passed["content"] = NO_ANSWER
        if finish is None and passed != delta and not any(passed.values()):
            return None
        has_content = finish is not None or any(value for key, value in passed.items() if key != "role")
        self._has_sent = self._has_sent or has_content
        changes: Json = {} if passed == delta else {"delta": passed}
        if finish != choice.get("finish_reason"):
            changes["finish_reason"] = finish
        return {**choice, **changes}

    def _passed_piece(self, message: StreamedMessage, piece: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The piece of a call for the client; None for nothing."""
        count = len(message.calls)
        call = message.add_call(piece)
        if len(message.calls) > count:
            hidden = message.hidden_before_newest
            call.number = count - hidden if hidden else piece.get("index")
        if is_hidden(call.body) or may_become_hidden(call.body):
            call.is_held = True
            function = object_at(call.body, "function")
            if len(arguments := function.get("arguments") or "") > MAX_ARGUMENTS and is_hidden(call.body):
                call.body["function"] = {**function, "arguments": arguments[:MAX_ARGUMENTS]}
            return None
        return call.numbered(piece)

    def _passed_finish(self, message: StreamedMessage, index: int, finish: str) -> str | None:
        """The finish reason for the client; None if another reply follows."""
        if index == 0:
            self._finish = finish
            if self.is_continued:
                return None
        hidden = [is_hidden(call.body) for call in message.calls]
        return finish_for_client(finish, has_calls=not all(hidden) or not hidden)

    @property
    def _has_earlier_text(self) -> bool:
        return any(said.text for said in self._earlier)


def _is_choice(value: object) -> bool:
    """Whether the choice of a chunk has a form that can be read; otherwise the chunk passes unchanged."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("index") or 0, int)
        and isinstance(value.get("delta") or {}, dict)
    )


TOOLS_AFTER_SYSTEM = -4
FUNCTION_CALL_FRAME = 3
FUNCTION_RESULT_FRAME = -2
NAMED_CHOICE_FRAME = 7
REASONING = frozenset(("reasoning_content", "reasoning", "thinking_blocks", "reasoning_details"))
"""The members of a message that have reasoning, at different servers."""


# -- tokens --------------------------------------------------------------------------------------------------------


class ChatCounter(PartsCounter):
    """Counts the prompt tokens of a chat request.

    Theory of operation. OpenAI's chat format wraps each message in three tokens and primes the reply with three more: 3
    + role + content + (name + 1) for each message, which is exact for the published counts of gpt-4 and gpt-4o. Tools
    are counted as the text that OpenAI's models see (`protocols/counter.py`), plus 9, less 4 if a system message comes
    first. Of 27 published counts, 19 are met exactly and the rest within 3 tokens.

    Other vendors frame messages in other ways, and servers whose template prints tools as JSON need about twice as
    much; calibration corrects that. Reasoning that comes back as text counts, though the digest of a message ignores
    it, because counts are cached by the bytes of a message. It stands in one of several members, or in two, once with
    its signature.
    """

    dialect = CHAT
    seen = ("role", "name", "content", "tool_calls", "function_call", *REASONING)

    def count(self, body: Mapping[str, object], opaque: Opaque) -> int:
        total = PER_MESSAGE + self.string(body.get("role")) + self._content(body.get("content"), opaque)
        if not REASONING.isdisjoint(body):
            total += self._reasoning(body, opaque)
        if name := self.string(body.get("name")):
            total += name + 1
        if body.get("role") == "function":
            total += FUNCTION_RESULT_FRAME
        if body.get("tool_calls"):
            total += sum(self._call(_inner(call)) for call in list_at(body, "tool_calls"))
        if isinstance(legacy := body.get("function_call"), Mapping):
            total += FUNCTION_CALL_FRAME + self._call(legacy)
        # A reply in sound, which only the server has, and pictures that a model has made.
        if body.get("audio"):
            opaque.priced(None)
        if body.get("images"):
            total += self._content(list_at(body, "images"), opaque)
        return total

    def _reasoning(self, body: Mapping[str, object], opaque: Opaque) -> int:
        blocks = [*list_at(body, "thinking_blocks"), *list_at(body, "reasoning_details")]
        texts = [self.string(body.get(name)) for name in ("reasoning_content", "reasoning")]
        texts.append(sum(self.string(_text_of(block)) for block in blocks))
        opaque.unpriced |= any(_text_of(block) is None for block in blocks)
        return opaque.priced(max(texts))

    def count_outside(
        self, values: Mapping[str, object], opaque: Opaque, *, has_system: bool = False, loaded: Collection[str] = ()
    ) -> int:
        """Tools, functions, choice, response format, priming."""
        total = REPLY_PRIMING
        if isinstance(schema := object_at(values, "response_format").get("json_schema"), Mapping):
            # The model sees it as JSON. No count was published, so this errs on the high side.
            total += SCHEMA_FRAME + self.json(schema)
        offered = [*loaded_tools(list_at(values, "tools"), loaded), *list_at(values, "functions")]
        if offered:
            choice = values.get("tool_choice", values.get("function_call"))
            total += self._tools(offered, opaque) + self._choice(choice)
            total += TOOLS_AFTER_SYSTEM if has_system else 0
        return total

    def _call(self, call: object) -> int:
        """Counts name and arguments; the model does not see ids."""
        if not isinstance(call, Mapping):
            return self.string(call)
        return self.string(call.get("name")) + self.string(call.get("arguments", call.get("input")))

    def _choice(self, choice: object) -> int:
        if choice == "none":
            return 1
        named = _inner(choice)
        if not isinstance(named, Mapping) or "name" not in named:
            return 0
        return NAMED_CHOICE_FRAME + self.string(named["name"])


def _text_of(block: object) -> object:
    """The text of a block of reasoning, in LiteLLM's form or OpenRouter's; None if only the vendor can read it."""
    fields = block if isinstance(block, Mapping) else {}
    return next((fields[key] for key in ("thinking", "text", "summary") if fields.get(key)), None)


def _inner(tagged: object) -> object:
    """The function or custom tool inside `{"type": …, "function": {…}}`, or the thing itself."""
    if isinstance(tagged, Mapping):
        return tagged.get("function") or tagged.get("custom") or tagged
    return tagged


_DONE = b"data: [DONE]"
_MAX_DONE = 32


# -- the endpoint --------------------------------------------------------------------------------------------------


class ChatEndpoint(Endpoint):
    """Chat completions."""

    dialect = CHAT
    path = "/v1/chat/completions"
    path_ending = "/chat/completions"
    text_parts = ("text",)
    counted_members: tuple[str, ...] = ("tools", "functions", "tool_choice", "function_call", "response_format")
    counter = ChatCounter
    reply_limits: tuple[str, ...] = ("max_completion_tokens", "max_tokens")
    answer = ANSWER
    text_places = TEXT_PLACES
    stream_capture = ChatCapture
    prompt_members = ("tools",)
    low_effort: Mapping[str, str] = {"reasoning_effort": '"low"'}
    bridged = ("user", *RESULT_ROLES)
    gives_several_answers = True
    format_place, added_members = ("response_format",), ("stream_options",)
    splicer = ChatSplicer

    def offers_tools(self, values: Values, systems: Iterable[bytes]) -> bool:
        """Tools were once called `functions`."""
        return bool(values.get("tools") or values.get("functions"))

    def has_one_choice(self, values: Values) -> bool:
        return values.get("n") in (None, 1)

    def usage_probe(self, values: Values) -> Mapping[str, str]:
        """Clients of OpenRouter ask in another way."""
        options: Any = values.get("stream_options") or {}
        is_asked = not isinstance(options, dict) or options.get("include_usage") is True
        if is_asked or object_at(values, "usage").get("include"):
            return {}
        return {"stream_options": json.dumps({**options, "include_usage": True})}

    # -- replies

    def is_greeting(self, event: object) -> bool:
        """Whether the choices of a chunk have a role at most."""
        if not isinstance(event, Mapping) or event.get("error") or not isinstance(event.get("choices"), list):
            return False
        return all(map(_gives_only_role, event["choices"]))

    def is_usage_alone(self, event: object) -> bool:
        """Whether a chunk has a usage and no choices, like the one that `include_usage` asks for."""
        return isinstance(event, dict) and bool(object_at(event, "usage")) and event.get("choices", 0) in ([], None)

    def last_event_at(self, chunk: bytes, sent: bytes) -> int:
        """The stream ends with a chunk that ends with `[DONE]`; comments may follow that."""
        at = chunk.rfind(_DONE, -_MAX_DONE)
        if at < 0 or (chunk[:at] or sent)[-1:] not in b"\r\n":
            return -1
        rest_of_line, *lines = chunk[at + len(_DONE) :].splitlines() or [b""]
        return at if not rest_of_line and all(not line or line.startswith(b":") for line in lines) else -1

    def items_in(self, document: Any) -> Items:
        choices = objects_at(document, "choices")
        message = choices[0].get("message") if choices else None
        return (sendable(message),) if isinstance(message, Mapping) else ()

    def written_error(self, document: Any, sent: bytes = b"") -> bytes:
        return event(json.dumps(document).encode())

    def answers(self, document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
        choices = document.get("choices")
        return [_answer(choice, tokens) for choice in choices] if isinstance(choices, list) else None

    # -- the memory tool

    def tool(self, name: str, description: str, parameters: Mapping[str, Any]) -> str:
        function = {"name": name, "description": description, "parameters": parameters}
        return dump({"type": "function", "function": function})

    def takes_tool(self, values: Values) -> bool:
        """No upstream accepts tools together with the old `functions`."""
        return not values.get("functions")

    def tool_members(self, tools: str, *, has_client_tools: bool, is_last: bool) -> dict[str, str]:
        """If the client has tools, which the model may still call, the memory tool is left out of the last request."""
        if is_last and has_client_tools:
            return {}
        return super().tool_members(tools, has_client_tools=has_client_tools, is_last=is_last)

    def results(self, found: Sequence[tuple[str, str]]) -> Items:
        return [{"role": "tool", "tool_call_id": id, "content": text} for id, text in found]

    def said(self, data: bytes) -> FirstChoice | None:
        body = json_or_none(data)
        choices = list_at(body, "choices")
        message = object_at(choices[0], "message") if choices else {}
        if not message:
            return None
        return FirstChoice(message, finish=choices[0].get("finish_reason"), usage=object_at(body, "usage") or None)

    def joined(self, data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes:
        body = json.loads(data)
        hides = [remove_hidden_calls(choice) for choice in body["choices"]]
        if not (earlier or any(hides)):
            return data
        message = body["choices"][0]["message"]
        if text := "".join(said.text for said in earlier) if keeps_text else "":
            content = message.get("content")
            if isinstance(content, list):
                message["content"] = [{"type": "text", "text": text}, *content]
            else:
                message["content"] = text + content if isinstance(content, str) and content != NO_ANSWER else text
        return dump(with_usage(body, earlier)).encode()


def _gives_only_role(choice: object) -> bool:
    delta = choice.get("delta") if isinstance(choice, Mapping) and choice.get("finish_reason") is None else None
    return isinstance(delta, Mapping) and {key for key, value in delta.items() if value} <= {"role"}


def _answer(choice: Any, tokens: int) -> Answer | Failure:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        return Failure("unreadable")
    parts = [part for part in objects_at(message, "content") if part.get("type") == "text"]
    return Answer(
        text=word_at(message, "content") or "".join(word_at(part, "text") for part in parts),
        finish_reason=str(choice.get("finish_reason")),
        tokens=tokens,
        called_tools=bool(message.get("tool_calls") or message.get("function_call")),
        reasoned=any(map(message.get, REASONING)),
    )


CHAT_ENDPOINT = ChatEndpoint()
