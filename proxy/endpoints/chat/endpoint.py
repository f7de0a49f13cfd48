"""The endpoint of chat: how requests, replies and events are read, and how the proxy's own are written."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from proxy.endpoints.chat.replies import (
    ANSWER,
    TEXT_PLACES,
    ChatCapture,
    ChatSplicer,
    FirstChoice,
    remove_hidden_calls,
    sendable,
)
from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING, SCHEMA_FRAME, PartsCounter, loaded_tools
from proxy.endpoints.endpoint import Endpoint, Values
from proxy.endpoints.hidden_calls import NO_ANSWER, Said, with_usage
from proxy.endpoints.replies import Items
from proxy.http.sse import event
from proxy.tokens.counter import Opaque
from proxy.values import json_or_none, list_at, object_at, objects_at, word_at
from strategies.core.effects import Answer, Failure
from strategies.core.messages import dump
from strategies.core.transcript import Transcript
from strategies.dialects.chat import CHAT, RESULT_ROLES

TOOLS_AFTER_SYSTEM = -4
FUNCTION_CALL_FRAME = 3
FUNCTION_RESULT_FRAME = -2
NAMED_CHOICE_FRAME = 7
REASONING = frozenset(("reasoning_content", "reasoning", "thinking_blocks", "reasoning_details"))


class ChatCounter(PartsCounter):
    """Counts the prompt tokens of a chat request.

    Theory of operation. OpenAI's chat format wraps each message in three tokens and primes the reply with three more: 3
    + role + content + (name + 1) for each message, which is exact for the published counts of gpt-4 and gpt-4o. Tools
    are counted as the text that OpenAI's models see (`endpoints/counter.py`), plus 9, less 4 if a system message comes
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
        total += sum(self._call(_inner(call)) for call in list_at(body, "tool_calls"))
        if isinstance(legacy := body.get("function_call"), Mapping):
            total += FUNCTION_CALL_FRAME + self._call(legacy)
        # A reply in sound, which only the server has, and pictures that a model has made.
        if body.get("audio"):
            opaque.priced(None)
        return total + self._content(list_at(body, "images"), opaque)

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
    splicer = ChatSplicer

    def offers_tools(self, values: Values, transcript: Transcript) -> bool:
        """Tools were once called `functions`."""
        return bool(values.get("tools") or values.get("functions"))

    def has_one_choice(self, values: Values) -> bool:
        return values.get("n") in (None, 1)

    def usage_probe(self, values: Values) -> Mapping[str, str]:
        options = values.get("stream_options")
        if not (options is None or isinstance(options, Mapping)):
            return {}
        if options and options.get("include_usage") is True:
            return {}
        return {"stream_options": json.dumps({**(options or {}), "include_usage": True})}

    # -- replies

    def is_greeting(self, event: object) -> bool:
        """Whether the choices of a chunk have a role at most."""
        if not isinstance(event, Mapping) or event.get("error") or not isinstance(event.get("choices"), list):
            return False
        return all(map(_gives_only_role, event["choices"]))

    def is_usage_alone(self, event: object) -> bool:
        """Whether a chunk has a usage and no choices, like the one that `include_usage` asks for."""
        if not isinstance(event, Mapping) or not isinstance(event.get("usage"), Mapping):
            return False
        return event.get("choices", 0) in ([], None)

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


_REASONING = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
"""The members of a message that have reasoning, at different servers."""


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
        reasoned=any(map(message.get, _REASONING)),
    )


CHAT_ENDPOINT = ChatEndpoint()
