"""Counts the prompt tokens of a chat request, from its parsed JSON.

Theory of operation. OpenAI's chat format wraps each message in three tokens and primes the reply with three more:
3 + role + content + (name + 1) a message, exact on the published counts for gpt-4 and gpt-4o. Contents that are not
text are priced, never tokenized: a picture's base64 as text would be a thousand times too much.

OpenAI's models see tools as a TypeScript namespace, one type for each function (reconstructed by several people from
counted requests). They are counted as that text, plus 9, less 4 where a system message comes first. Nested descriptions
are kept and nothing is indented: of 27 published counts 19 are met exactly and the rest within 3 tokens. Shared
definitions (`$defs`) become types of their own; how they are really shown was never published. Work and output are
linear in the size of the schema: references are named, not followed, and a field with several types renders its nested
part once.

Other vendors frame messages in other ways, and servers whose template prints tools as JSON need about twice as much.
What this formula misses is constant for a conversation, and calibration from the upstream's `usage` makes it good.
Members that the digest of a message ignores (`reasoning_content`, ids) are ignored here too, so that a count may be
cached by digest. Members of wrong types are counted in some sensible way: nothing here raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from proxy.tokens import images

PER_MESSAGE = 3
REPLY_PRIMING = 3
TOOLS_FRAME = 9
TOOLS_AFTER_SYSTEM = -4
FUNCTION_CALL_FRAME = 3
FUNCTION_RESULT_FRAME = -2
NAMED_CHOICE_FRAME = 7
SCHEMA_FRAME = 10

AUDIO_BYTES_PER_TOKEN = {"wav": 4_800, "pcm16": 4_800}
"""Ten tokens a second, of 24 kHz 16-bit sound; anything else is taken as 64 kbit/s."""
COMPRESSED_AUDIO_BYTES_PER_TOKEN = 800
FILE_BYTES_PER_TOKEN = 32
"""A PDF page of 50 kB costs about 1,500 tokens as text and picture."""
UNSEEN_FILE_TOKENS = 1_500
MAX_MEDIA_TOKENS = 100_000
MAX_DEPTH = 24
"""Schemas nested deeper than this are rendered as `object`; no published tool comes near."""


@dataclass(slots=True, eq=False)
class Prompt:
    """The formula over one text counter and one price list for pictures. Pure if `text` is."""

    text: Callable[[str], int]
    images: images.Family

    def message(self, body: Mapping[str, object]) -> int:
        """Tokens of one message, its framing included."""
        total = PER_MESSAGE + self._string(body.get("role")) + self._content(body.get("content"))
        if name := self._string(body.get("name")):
            total += name + 1
        if body.get("role") == "function":
            total += FUNCTION_RESULT_FRAME
        return total + self._calls(body)

    def overhead(self, request: Mapping[str, object]) -> int:
        """Tokens of a request besides its messages: tools, functions, choice, response format, priming.

        `messages` is looked at only for the presence of a system message.
        """
        total = REPLY_PRIMING + self._response_format(request.get("response_format"))
        offered = [*_items(request.get("tools")), *_items(request.get("functions"))]
        if offered:
            choice = request.get("tool_choice", request.get("function_call"))
            total += self._tools(offered) + self._choice(choice)
            total += TOOLS_AFTER_SYSTEM if _has_system(request.get("messages")) else 0
        return total

    # -- messages ------------------------------------------------------------------------------------

    def _string(self, value: object) -> int:
        if isinstance(value, str):
            return self.text(value) if value else 0
        return 0 if value is None else self._loose(value)

    def _content(self, content: object) -> int:
        if isinstance(content, list):
            return sum(self._part(part) for part in content)
        return self._string(content)

    def _part(self, part: object) -> int:
        if not isinstance(part, Mapping):
            return self._string(part)
        match part.get("type"):
            case "text" | "input_text" | "output_text":
                return self._string(part.get("text"))
            case "refusal":
                return self._string(part.get("refusal"))
            case "image_url" | "input_image" | "image":
                return self._image(part)
            case "input_audio":
                return self._audio(part.get("input_audio"))
            case "file" | "input_file":
                return self._file(part.get("file", part))
            case _:
                return self._loose(part)

    def _calls(self, body: Mapping[str, object]) -> int:
        total = sum(self._call(_inner(call)) for call in _items(body.get("tool_calls")))
        legacy = body.get("function_call")
        if isinstance(legacy, Mapping):
            total += FUNCTION_CALL_FRAME + self._call(legacy)
        return total

    def _call(self, call: object) -> int:
        """Name and arguments; ids are not shown to the model."""
        if not isinstance(call, Mapping):
            return self._string(call)
        return self._string(call.get("name")) + self._string(call.get("arguments", call.get("input")))

    # -- media: priced, never tokenized --------------------------------------------------------------

    def _image(self, part: Mapping[str, object]) -> int:
        place = part.get("image_url", part.get("source"))
        fields = place if isinstance(place, Mapping) else {"url": place}
        detail = fields.get("detail", part.get("detail"))
        return self.images.tokens(_image_size(fields), detail if isinstance(detail, str) else "auto")

    def _audio(self, audio: object) -> int:
        fields = audio if isinstance(audio, Mapping) else {}
        rate = AUDIO_BYTES_PER_TOKEN.get(str(fields.get("format")), COMPRESSED_AUDIO_BYTES_PER_TOKEN)
        return _bounded(_decoded_bytes(fields.get("data")), rate)

    def _file(self, file: object) -> int:
        fields = file if isinstance(file, Mapping) else {}
        name = self._string(fields.get("filename"))
        return name + _bounded(_decoded_bytes(fields.get("file_data")), FILE_BYTES_PER_TOKEN)

    # -- tools ---------------------------------------------------------------------------------------

    def _tools(self, offered: list[object]) -> int:
        functions = [inner for inner in map(_function, offered) if inner is not None]
        others = [tool for tool in offered if _function(tool) is None]
        total = sum(self._loose(tool) for tool in others)
        return total + (TOOLS_FRAME + self.text(namespace(functions)) if functions else 0)

    def _choice(self, choice: object) -> int:
        if choice == "none":
            return 1
        named = _inner(choice)
        if not isinstance(named, Mapping) or "name" not in named:
            return 0
        return NAMED_CHOICE_FRAME + self._string(named["name"])

    def _response_format(self, response_format: object) -> int:
        """A schema is shown to the model as JSON; no count was published, so this errs upwards."""
        schema = response_format.get("json_schema") if isinstance(response_format, Mapping) else None
        return SCHEMA_FRAME + self._json(schema) if isinstance(schema, Mapping) else 0

    # -- anything ------------------------------------------------------------------------------------

    def _json(self, value: object) -> int:
        try:
            return self.text(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
        except (RecursionError, ValueError):
            return self._loose(value)

    def _loose(self, value: object) -> int:
        """About the tokens of `value` written as JSON; media in it are priced like a picture."""
        return sum(self._leaf(leaf) for leaf in _leaves(value))

    def _leaf(self, leaf: object) -> int:
        if isinstance(leaf, str) and leaf.startswith("data:"):
            return self.images.tokens(images.size_of(leaf), "auto")
        return 1 + self.text(leaf if isinstance(leaf, str) else str(leaf))


def _leaves(value: object) -> Iterator[object]:
    """Keys and scalars of nested JSON. Not recursive: depth is the client's choice."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, Mapping):
            pending.extend(current.keys())
            pending.extend(current.values())
        elif isinstance(current, list | tuple):
            pending.extend(current)
        else:
            yield current


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


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


def _has_system(messages: object) -> bool:
    roles = (message.get("role") for message in _items(messages) if isinstance(message, Mapping))
    return any(role in ("system", "developer") for role in roles)


def _image_size(fields: Mapping[str, object]) -> images.Size | None:
    if isinstance(url := fields.get("url"), str):
        return images.size_of(url)
    if isinstance(data := fields.get("data"), str):
        return images.size_of_base64(data)
    return None


def _decoded_bytes(data: object) -> int | None:
    return len(data) * 3 // 4 if isinstance(data, str) else None


def _bounded(size: int | None, bytes_per_token: int) -> int:
    if size is None:
        return UNSEEN_FILE_TOKENS
    return min(MAX_MEDIA_TOKENS, 1 + size // bytes_per_token)


# -- tools as the text that a model is given ---------------------------------------------------------


def namespace(functions: Iterable[Mapping[str, object]]) -> str:
    """Renders function definitions (`name`, `description`, `parameters`); malformed members are left out."""
    lines = ["namespace functions {", ""]
    for function in functions:
        lines += [*_definitions(function), *_comment(function), _signature(function), ""]
    return "\n".join([*lines, "} // namespace functions"])


def _signature(function: Mapping[str, object]) -> str:
    parameters = function.get("parameters")
    fields = list(_fields(parameters, 0)) if isinstance(parameters, Mapping) else []
    body = "\n".join(("_: {", *fields, "}")) if fields else ""
    return f"type {function.get('name', '')} = ({body}) => any;"


def _definitions(function: Mapping[str, object]) -> Iterator[str]:
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, Mapping) else {}
    definitions = schema.get("$defs", schema.get("definitions"))
    for name, shape in definitions.items() if isinstance(definitions, Mapping) else ():
        if isinstance(shape, Mapping):
            yield from _comment(shape)
            yield f"type {name} = {_type(shape, 0)};"


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
        return " | ".join(_literal(value) for value in values)
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return " | ".join(_type(one, depth + 1) for one in options if isinstance(one, Mapping))
    return _plain(schema, depth)


def _plain(schema: Mapping[str, object], depth: int) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([one for one in kind if isinstance(one, str)], schema, depth)
    return _named(kind, schema, depth) if isinstance(kind, str) else "any"


def _union(kinds: list[str], schema: Mapping[str, object], depth: int) -> str:
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


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
