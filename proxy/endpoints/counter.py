"""What the counters of all protocols share: frames, contents that are lists of parts, and the text of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from proxy.tokens import images
from proxy.tokens.counter import INLINE_CHARS, Counter
from proxy.tokens.tools import namespace
from proxy.values import object_at

PER_MESSAGE = 3
REPLY_PRIMING = 3
TOOLS_FRAME = 9
SCHEMA_FRAME = 10
CHARS_PER_SEALED_TOKEN = 6
"""Characters of a signature, or of encrypted reasoning, for each token: a guess."""
FRAME_CHARS = 40
MEDIA_CHARS = 4_096
"""The cost of reading a picture's size, in characters of text."""


class PartsCounter(Counter):
    """Counts messages whose content is a text or a list of parts; the parts are those of OpenAI's protocols."""

    seen: ClassVar[tuple[str, ...]] = ("content",)
    """The members of a message that are counted."""

    def chars(self, body: Mapping[str, object]) -> int:
        return FRAME_CHARS + sum(_chars_of(body[member]) for member in self.seen if member in body)

    def _content(self, content: object) -> int:
        if isinstance(content, list):
            return sum(self._part(part) for part in content)
        return self.string(content)

    def _part(self, part: object) -> int:
        if not isinstance(part, Mapping):
            return self.string(part)
        match part.get("type"):
            case "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text":
                return self.string(part.get("text"))
            case "refusal":
                return self.string(part.get("refusal"))
            case "image_url" | "input_image" | "image":
                place = part.get("image_url", part.get("source"))
                fields = place if isinstance(place, Mapping) else {"url": place}
                return self.image(_image_size(fields), fields.get("detail", part.get("detail")))
            case "input_audio":
                audio = object_at(part, "input_audio")
                return self.audio(audio.get("data"), audio.get("format"))
            case "file" | "input_file":
                file = object_at(part, "file") or part
                return self.file(file.get("file_data"), file.get("filename"))
            case _:
                return self.loose(part)

    def _tools(self, tools: Sequence[object]) -> int:
        """Counts functions as OpenAI's models see them, and other tools by their texts."""
        functions = [function for function in map(_function, tools) if function is not None]
        total = sum(self.loose(tool) for tool in tools if _function(tool) is None)
        return total + (TOOLS_FRAME + self.text(namespace(functions)) if functions else 0)


def sealed(thought: object) -> int:
    """The tokens of hidden reasoning, by the length of its signature or of its encrypted text."""
    return len(thought) // CHARS_PER_SEALED_TOKEN if isinstance(thought, str) else 0


def _function(tool: object) -> Mapping[str, object] | None:
    """The definition of a function tool, tagged or bare; None for other kinds of tools."""
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        return None
    inner = tool.get("function", tool)
    return inner if isinstance(inner, Mapping) and isinstance(inner.get("name"), str) else None


def _image_size(fields: Mapping[str, object]) -> images.Size | None:
    if isinstance(url := fields.get("url"), str):
        return images.size_of(url)
    data = fields.get("data")
    return images.size_of_base64(data) if isinstance(data, str) else None


def _chars_of(content: object) -> int:
    """Roughly how much work it is to count a content, in characters of text."""
    if isinstance(content, list):
        return sum(map(_chars_of_part, content[:INLINE_CHARS]))
    return 0 if content is None else _chars_of_part(content)


def _chars_of_part(part: Any) -> int:
    """A part of an unknown form counts as enough work to be counted off the event loop."""
    match part:
        case str():
            return len(part)
        case {"text": str(text)} | {"thinking": str(text)}:
            return len(text)
        case {"function": {"name": str(name), "arguments": str(text)}} | {"name": str(name), "arguments": str(text)}:
            return len(name) + len(text)
        case {"type": "tool_result"}:
            return FRAME_CHARS + _chars_of(part.get("content"))
        case {"type": "image_url" | "input_image" | "image" | "input_audio" | "input_file" | "document"}:
            return MEDIA_CHARS
        case _:
            return INLINE_CHARS
