"""What the counters of all protocols share: frames, contents that are lists of parts, and the text of tools."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from proxy.tokens.counter import INLINE_CHARS, Counter, Opaque
from proxy.values import object_at

PER_MESSAGE = 3
REPLY_PRIMING = 3
TOOLS_FRAME = 9
SCHEMA_FRAME = 10
FRAME_CHARS = 40
MEDIA_CHARS = 4_096  # the cost of reading a picture's size, in characters of text
MAX_DEPTH = 24  # schemas nested deeper than this are rendered as `object`; no published tool comes near


class PartsCounter(Counter):
    """Counts messages whose content is a text or a list of parts; the parts are those of OpenAI's protocols."""

    seen: ClassVar[tuple[str, ...]] = ("content",)  # the members of a message that are counted

    def chars(self, body: Mapping[str, object]) -> int:
        return FRAME_CHARS + sum(_chars_of(body[member]) for member in self.seen if member in body)

    def _content(self, content: object, opaque: Opaque) -> int:
        if isinstance(content, list):
            return sum(self._part(part, opaque) for part in content)
        return self._part(content, opaque) if isinstance(content, Mapping) else self.string(content)

    def _part(self, part: object, opaque: Opaque) -> int:
        if not isinstance(part, Mapping):
            return self.string(part)
        match part.get("type"):
            case "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text":
                return self.string(part.get("text"))
            case "refusal":
                return self.string(part.get("refusal"))
            case "thinking":
                return self._thought(part.get("thinking"), opaque)
            case "image_url" | "input_image" | "image" | "computer_screenshot":
                place = part.get("image_url", part.get("source"))
                fields = place if isinstance(place, Mapping) else {"url": place or part.get("data")}
                detail = fields.get("detail", part.get("detail"))
                return self.image(fields.get("url", fields.get("data")), opaque, detail)
            case "input_audio":
                audio = object_at(part, "input_audio")
                return self.audio(audio.get("data"), audio.get("format"), opaque)
            case "file" | "input_file":
                file = object_at(part, "file") or part
                return self.string(file.get("filename")) + self.file(file.get("file_data"), opaque)
            case _:
                return opaque.priced(None)

    def _thought(self, thought: object, opaque: Opaque) -> int:
        """Tokens of reasoning; if it has no text, only the vendor can read it."""
        parts = thought if isinstance(thought, list) else [thought]
        texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
        return opaque.priced(sum(map(self.string, texts)) or None)

    def _tools(self, tools: Sequence[object], opaque: Opaque) -> int:
        """Counts functions as OpenAI's models see them, and other tools by their texts."""
        functions = [function for function in map(_function, tools) if function is not None]
        others = [tool for tool in tools if _function(tool) is None]
        # What a server of the Model Context Protocol offers is not in the request.
        opaque.unpriced |= any(isinstance(tool, Mapping) and tool.get("type") in _REMOTE for tool in others)
        total = sum(self.loose(tool, opaque) for tool in others)
        return total + (TOOLS_FRAME + self.text(namespace(functions)) if functions else 0)


_REMOTE = ("mcp", "mcp_toolset")


def loaded_tools(tools: Sequence[object], loaded: Collection[str]) -> Iterator[object]:
    """Yields the tools that the model sees: not those whose loading is deferred, unless they are `loaded` by now."""
    for tool in tools:
        if not isinstance(tool, Mapping):
            yield tool
        elif isinstance(inner := tool.get("tools"), list):
            yield {**tool, "tools": [each for each in inner if not _is_deferred(each)]}
        elif not _is_deferred(tool) or tool.get("name") in loaded:
            yield tool


def _is_deferred(tool: object) -> bool:
    places = object_at({"": tool}, ""), object_at(tool, "function"), object_at(tool, "default_config")
    return any(place.get("defer_loading") is True for place in places)


def _function(tool: object) -> Mapping[str, object] | None:
    """The definition of a function tool, tagged or bare; None for other kinds of tools."""
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        return None
    inner = tool.get("function", tool)
    return inner if isinstance(inner, Mapping) and isinstance(inner.get("name"), str) else None


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
        case {"type": "image_url" | "input_image" | "image"}:
            return MEDIA_CHARS
        case _:
            return INLINE_CHARS


# -- tools as the text that OpenAI's models are given ---------------------------------------------------------------


def namespace(functions: Iterable[Mapping[str, object]]) -> str:
    """Function definitions (`name`, `description`, `parameters`) as the text that a model is given.

    OpenAI's models see tools as a TypeScript namespace with one type for each function, reconstructed by several people
    from counted requests. Nested descriptions are kept and nothing is indented. Shared definitions (`$defs`) become
    types of their own; how they are really shown was never published. Work and output are linear in the size of the
    schema: references are named, not followed, and a field with several types renders its nested part once. Malformed
    members are left out.
    """
    lines = ["namespace functions {", ""]
    for function in functions:
        lines += [*_typed(function), ""]
    return "\n".join([*lines, "} // namespace functions"])


def _typed(function: Mapping[str, object]) -> Iterator[str]:
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, Mapping) else {}
    definitions = schema.get("$defs", schema.get("definitions"))
    for name, shape in definitions.items() if isinstance(definitions, Mapping) else ():
        if isinstance(shape, Mapping):
            yield from _comment(shape)
            yield f"type {name} = {_type(shape, 0)};"
    yield from _comment(function)
    fields = list(_fields(schema, 0))
    body = "\n".join(("_: {", *fields, "}")) if fields else ""
    yield f"type {function.get('name', '')} = ({body}) => any;"


def _fields(schema: Mapping[str, object], depth: int) -> Iterator[str]:
    properties = schema.get("properties")
    required = schema.get("required")
    if not isinstance(properties, Mapping):
        return
    for name, field in properties.items():
        mark = "" if isinstance(required, list) and name in required else "?"
        if isinstance(field, Mapping):
            yield from _comment(field)
            yield f"{name}{mark}: {_type(field, depth + 1)},"
        else:
            yield f"{name}{mark}: any,"


def _comment(described: Mapping[str, object]) -> list[str]:
    text = described.get("description")
    return [f"// {text}"] if isinstance(text, str) and text else []


def _type(schema: Mapping[str, object], depth: int) -> str:
    if depth > MAX_DEPTH:
        return "object"
    if isinstance(reference := schema.get("$ref"), str):
        return reference.rsplit("/", 1)[-1]
    values = schema.get("enum")
    if isinstance(values, list):
        return " | ".join(
            json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value) for value in values
        )
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return " | ".join(_type(one, depth + 1) for one in options if isinstance(one, Mapping))
    kind = schema.get("type")
    if not isinstance(kind, list):
        return _named(kind, schema, depth) if isinstance(kind, str) else "any"
    kinds = [one for one in kind if isinstance(one, str)]
    nested = next((at for at, kind in enumerate(kinds) if kind in ("array", "object")), None)
    return " | ".join(_named(kind, schema if at == nested else {}, depth) for at, kind in enumerate(kinds))


def _named(kind: str, schema: Mapping[str, object], depth: int) -> str:
    if kind == "array":
        items = schema.get("items")
        return (_type(items, depth + 1) if isinstance(items, Mapping) else "any") + "[]"
    if kind == "object":
        fields = list(_fields(schema, depth))
        return "\n".join(("{", *fields, "}")) if fields else "object"
    return "number" if kind == "integer" else kind
