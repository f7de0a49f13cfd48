"""Counts the prompt tokens of a Responses request.

Theory of operation. The models are those of chat, and so are the formulas: three tokens frame a message, and tools are
shown as text of the same form (`proxy/tokens/tools.py`). A call and its output are framed like a message each. What
was reasoned is not known: the length of what is encrypted tells, and calibration makes it good. Items of unknown types
cost what their texts cost.
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
    sealed,
)
from proxy.tokens import images
from proxy.tokens.counter import INLINE_CHARS
from strategies.dialects.responses import RESPONSES

_CONTENTS = ("content", "output", "arguments", "input", "instructions")
_UNSEEN = ("type", "id", "call_id", "status", "encrypted_content", "role")


class ResponsesCounter(PartsCounter):
    """Counts items of the Responses API."""

    dialect = RESPONSES
    protocol = "responses/"

    def message(self, body: Mapping[str, object]) -> int:
        """Tokens of one item, its framing included."""
        match body.get("type", "message"):
            case "message":
                return PER_MESSAGE + self._content(body.get("content"))
            case "reasoning" | "compaction":
                return PER_MESSAGE + sealed(body.get("encrypted_content"))
            case "function_call" | "custom_tool_call":
                given = body.get("arguments", body.get("input"))
                return PER_MESSAGE + self.string(body.get("name")) + self.string(given)
            case "function_call_output" | "custom_tool_call_output":
                return PER_MESSAGE + self._content(body.get("output"))
        return PER_MESSAGE + self.loose({key: value for key, value in body.items() if key not in _UNSEEN})

    def overhead(self, values: Mapping[str, object], *, has_system: bool = False) -> int:
        """Tokens of a request besides its items: instructions, tools, a schema, priming."""
        total = REPLY_PRIMING
        if instructions := values.get("instructions"):
            total += PER_MESSAGE + self._content(instructions)
        text = values.get("text")
        form = text.get("format") if isinstance(text, Mapping) else None
        if isinstance(form, Mapping) and isinstance(form.get("schema"), Mapping):
            total += SCHEMA_FRAME + self.json(form["schema"])
        return total + self._tools(values.get("tools"))

    def chars(self, body: Mapping[str, object]) -> int:
        """About how much work it is to count an item, in characters of text."""
        return FRAME_CHARS + sum(chars_of(body[member], _chars_of_part) for member in _CONTENTS if member in body)

    def _tools(self, tools: object) -> int:
        offered = [tool for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
        functions = [tool for tool in offered if tool.get("type") == "function" and isinstance(tool.get("name"), str)]
        return sum(self.loose(tool) for tool in offered if tool not in functions) + self._functions(functions)

    def _part(self, part: object) -> int:
        if not isinstance(part, Mapping):
            return self.string(part)
        match part.get("type"):
            case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
                return self.string(part.get("text"))
            case "refusal":
                return self.string(part.get("refusal"))
            case "input_image":
                url = part.get("image_url")
                return self.image(images.size_of(url) if isinstance(url, str) else None, part.get("detail"))
            case "input_file":
                return self.file(part.get("file_data"), part.get("filename"))
            case _:
                return self.loose(part)


def _chars_of_part(part: object) -> int:
    """About how much work a part of a content is; an unknown form counts as much."""
    match part:
        case str():
            return len(part)
        case {"text": str(text)}:
            return len(text)
        case {"type": "input_image" | "input_file"}:
            return MEDIA_CHARS
        case _:
            return INLINE_CHARS
