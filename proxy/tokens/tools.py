"""Tools as the text that OpenAI's models are given."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

MAX_DEPTH = 24
"""Schemas nested deeper than this are rendered as `object`; no published tool comes near."""


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
        lines += [*_function(function), ""]
    return "\n".join([*lines, "} // namespace functions"])


def _function(function: Mapping[str, object]) -> Iterator[str]:
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
