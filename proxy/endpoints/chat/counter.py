"""Counts the prompt tokens of a chat request.

Theory of operation. OpenAI's chat format wraps each message in three tokens and primes the reply with three more:
3 + role + content + (name + 1) a message, exact on the published counts for gpt-4 and gpt-4o. Tools are counted as the
text that OpenAI's models see (`proxy/tokens/tools.py`), plus 9, less 4 where a system message comes first: of 27
published counts 19 are met exactly and the rest within 3 tokens.

Other vendors frame messages in other ways, and servers whose template prints tools as JSON need about twice as much;
calibration makes that good. Members that the digest of a message ignores (`reasoning_content`, ids) are ignored here
too, so that a count may be cached by digest.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.endpoints.counter import (
    FRAME_CHARS,
    MEDIA_CHARS,
    PER_MESSAGE,
    REPLY_PRIMING,
    SCHEMA_FRAME,
    PartsCounter,
    chars_of,
)
from proxy.tokens import images
from proxy.tokens.counter import INLINE_CHARS
from strategies.dialects.chat import CHAT

TOOLS_AFTER_SYSTEM = -4
FUNCTION_CALL_FRAME = 3
FUNCTION_RESULT_FRAME = -2
NAMED_CHOICE_FRAME = 7
_SEEN = ("role", "name", "content", "tool_calls", "function_call")


class ChatCounter(PartsCounter):
    """Counts chat messages."""

    dialect = CHAT

    def message(self, body: Mapping[str, object]) -> int:
        """Tokens of one message, its framing included."""
        total = PER_MESSAGE + self.string(body.get("role")) + self._content(body.get("content"))
        if name := self.string(body.get("name")):
            total += name + 1
        if body.get("role") == "function":
            total += FUNCTION_RESULT_FRAME
        return total + self._calls(body)

    def overhead(self, values: Mapping[str, object], *, has_system: bool = False) -> int:
        """Tokens of a request besides its messages: tools, functions, choice, response format, priming."""
        total = REPLY_PRIMING + self._response_format(values.get("response_format"))
        offered = [*_items(values.get("tools")), *_items(values.get("functions"))]
        if offered:
            choice = values.get("tool_choice", values.get("function_call"))
            total += self._tools(offered) + self._choice(choice)
            total += TOOLS_AFTER_SYSTEM if has_system else 0
        return total

    def chars(self, body: Mapping[str, object]) -> int:
        """About how much work it is to count a message, in characters of text."""
        return FRAME_CHARS + sum(chars_of(body.get(member), _chars_of_part) for member in _SEEN)

    def _part(self, part: object) -> int:
        if not isinstance(part, Mapping):
            return self.string(part)
        match part.get("type"):
            case "text" | "input_text" | "output_text":
                return self.string(part.get("text"))
            case "refusal":
                return self.string(part.get("refusal"))
            case "image_url" | "input_image" | "image":
                place = part.get("image_url", part.get("source"))
                fields = place if isinstance(place, Mapping) else {"url": place}
                return self.image(_image_size(fields), fields.get("detail", part.get("detail")))
            case "input_audio":
                audio = _object(part.get("input_audio"))
                return self.audio(audio.get("data"), audio.get("format"))
            case "file" | "input_file":
                file = _object(part.get("file", part))
                return self.file(file.get("file_data"), file.get("filename"))
            case _:
                return self.loose(part)

    def _calls(self, body: Mapping[str, object]) -> int:
        total = sum(self._call(_inner(call)) for call in _items(body.get("tool_calls")))
        legacy = body.get("function_call")
        if isinstance(legacy, Mapping):
            total += FUNCTION_CALL_FRAME + self._call(legacy)
        return total

    def _call(self, call: object) -> int:
        """Name and arguments; ids are not shown to the model."""
        if not isinstance(call, Mapping):
            return self.string(call)
        return self.string(call.get("name")) + self.string(call.get("arguments", call.get("input")))

    def _tools(self, offered: list[object]) -> int:
        functions = [inner for inner in map(_function, offered) if inner is not None]
        others = [tool for tool in offered if _function(tool) is None]
        return sum(self.loose(tool) for tool in others) + self._functions(functions)

    def _choice(self, choice: object) -> int:
        if choice == "none":
            return 1
        named = _inner(choice)
        if not isinstance(named, Mapping) or "name" not in named:
            return 0
        return NAMED_CHOICE_FRAME + self.string(named["name"])

    def _response_format(self, response_format: object) -> int:
        """A schema is shown to the model as JSON; no count was published, so this errs upwards."""
        schema = response_format.get("json_schema") if isinstance(response_format, Mapping) else None
        return SCHEMA_FRAME + self.json(schema) if isinstance(schema, Mapping) else 0


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _inner(tagged: object) -> object:
    """The function or custom tool inside `{"type": …, "function": {…}}`, or the thing itself."""
    if isinstance(tagged, Mapping):
        return tagged.get("function") or tagged.get("custom") or tagged
    return tagged


def _function(tool: object) -> Mapping[str, object] | None:
    """The definition of a function tool, in its tagged or its bare form; None for tools of other kinds."""
    if not isinstance(tool, Mapping) or "custom" in tool:
        return None
    inner = tool.get("function", tool)
    return inner if isinstance(inner, Mapping) and isinstance(inner.get("name"), str) else None


def _image_size(fields: Mapping[str, object]) -> images.Size | None:
    if isinstance(url := fields.get("url"), str):
        return images.size_of(url)
    if isinstance(data := fields.get("data"), str):
        return images.size_of_base64(data)
    return None


def _chars_of_part(part: object) -> int:
    """About how much work a part of a member is; an unknown form counts as much."""
    match part:
        case str():
            return len(part)
        case {"text": str(text)}:
            return len(text)
        case {"function": {"name": str(name), "arguments": str(text)}} | {"name": str(name), "arguments": str(text)}:
            return len(name) + len(text)
        case {"type": "image_url" | "input_audio"}:
            return MEDIA_CHARS
        case {"type": "file", "file": {"filename": str(name)}}:
            return len(name) + MEDIA_CHARS
        case _:
            return INLINE_CHARS
