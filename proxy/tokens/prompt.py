"""The tokens of a prompt, from its parsed JSON: what the formulas of all protocols have in common.

Contents that are not text are priced, never tokenized: a picture's base64 as text would be a thousand times too much.
Members of wrong types are counted in some sensible way: nothing here raises. How a protocol frames messages and tools
is in its folder (`proxy/endpoints`). What a formula misses is constant for a conversation, and calibration from
the upstream's `usage` makes it good.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from proxy.tokens.images import Family, Size, size_of

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
class Prompt(ABC):
    """The formula over one text counter and one price list for pictures. Pure if `text` is."""

    text: Callable[[str], int]
    images: Family

    @abstractmethod
    def message(self, body: Mapping[str, object]) -> int:
        """Tokens of one message, its framing included."""

    @abstractmethod
    def overhead(self, values: Mapping[str, object], *, has_system: bool = False) -> int:
        """Tokens of a request besides its messages, by its other members: tools and the like, and the priming.

        `has_system` says whether one of the messages is a system message.
        """

    @abstractmethod
    def chars(self, body: Mapping[str, object]) -> int:
        """About how much work it is to count a message, in characters of text."""

    # -- texts

    def string(self, value: object) -> int:
        """Tokens of what should be a text."""
        if isinstance(value, str):
            return self.text(value) if value else 0
        return 0 if value is None else self.loose(value)

    def json(self, value: object) -> int:
        """Tokens of a value that is shown as JSON."""
        try:
            return self.text(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
        except (RecursionError, ValueError):
            return self.loose(value)

    def loose(self, value: object) -> int:
        """About the tokens of `value` written as JSON; media in it are priced like a picture."""
        return sum(self._leaf(leaf) for leaf in _leaves(value))

    def _leaf(self, leaf: object) -> int:
        if isinstance(leaf, str) and leaf.startswith("data:"):
            return self.images.tokens(size_of(leaf), "auto")
        return 1 + self.text(leaf if isinstance(leaf, str) else str(leaf))

    # -- media

    def image(self, size: Size | None, detail: object) -> int:
        return self.images.tokens(size, detail if isinstance(detail, str) else "auto")

    def audio(self, data: object, form: object) -> int:
        """Tokens of a sound in base64."""
        return _bounded(data, AUDIO_BYTES_PER_TOKEN.get(str(form), COMPRESSED_AUDIO_BYTES_PER_TOKEN))

    def file(self, data: object, name: object) -> int:
        """Tokens of a file in base64, or of one that only the server has."""
        return self.string(name) + _bounded(data, FILE_BYTES_PER_TOKEN)


def is_short(prompt: Prompt, bodies: Iterable[Mapping[str, object]], chars: int) -> bool:
    """Whether messages have less than about `chars`; stops adding up as soon as they have more."""
    room = chars
    for body in bodies:
        room -= prompt.chars(body)
        if room < 0:
            return False
    return True


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


def _bounded(data: object, bytes_per_token: int) -> int:
    """Tokens of base64 data by its length; a fixed number if there is none."""
    if not isinstance(data, str):
        return UNSEEN_FILE_TOKENS
    return min(MAX_MEDIA_TOKENS, 1 + len(data) * 3 // 4 // bytes_per_token)


# -- tools


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
