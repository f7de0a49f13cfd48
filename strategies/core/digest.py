"""Digests of messages and the chain over them.

Two messages have the same digest if a client may well mean the same message: SDKs rebuild a reply before they send it
back, drop `null` members, add fields of their own, or write the arguments of a call with other spaces. So a digest
covers a closed list of members in a canonical form, and nothing else:

    role, name, content, calls (id, name, arguments), the id of the call that a result answers

An assistant's name is left out: agent SDKs add it only when they send a reply back in a later turn.
Arguments are compared as JSON if they parse; `""` is `{}`, and 1.0 is 1. `null`, `""` and `[]` are the same content;
a list of one text part is that text. `function_call` is a call without an id, role `function` a result without one.

The chain is h_i = H(h_{i-1}, digest_i): equal chain digests mean equal histories up to that message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

DIGEST_BYTES = 16
ROOT = b"\x00" * DIGEST_BYTES
LINKS_REMEMBERED = 8_192
"""Entries of the cache of links: about 2 MB."""

_UNSEEN_PART_MEMBERS = frozenset({"cache_control", "annotations", "logprobs"})


def message_digest(body: Mapping[str, object]) -> bytes:
    """The digest of one parsed chat message, 16 bytes."""
    hasher = blake2b(digest_size=DIGEST_BYTES)
    for field in _fields(body):
        data = field.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "big"))
        hasher.update(data)
    return hasher.digest()


def chain(digests: Iterable[bytes], root: bytes = ROOT) -> list[bytes]:
    """The chain digest after each message, in order."""
    return list(accumulate(digests, link, initial=root))[1:]


@lru_cache(maxsize=LINKS_REMEMBERED)
def link(previous: bytes, digest: bytes) -> bytes:
    """The chain digest after `previous` and one more message with `digest`.

    Cached, because each request of a conversation needs all of its links again.
    """
    return blake2b(previous + digest, digest_size=DIGEST_BYTES).digest()


def _fields(body: Mapping[str, object]) -> Iterable[str]:
    role = body.get("role")
    yield "tool" if role == "function" else str(role)
    yield "" if role == "assistant" else _word(body.get("name"))
    yield from _content(body.get("content"))
    for call_id, name, arguments in call_fields(body):
        yield from ("call", call_id, name, canonical_arguments(arguments))
    yield _word(body.get("tool_call_id"))


def call_fields(body: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """The (id, name, arguments) of each call in an assistant message; a `function_call` has the id ""."""
    calls = body.get("tool_calls")
    fields = [_call(call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, Sequence) else []
    old_style = body.get("function_call")
    if isinstance(old_style, Mapping):
        fields.append(("", _word(old_style.get("name")), _word(old_style.get("arguments"))))
    return fields


def _call(call: Mapping[str, object]) -> tuple[str, str, str]:
    function = call.get("function")
    if isinstance(function, Mapping):
        return _word(call.get("id")), _word(function.get("name")), _word(function.get("arguments"))
    custom = call.get("custom")
    if isinstance(custom, Mapping):
        return _word(call.get("id")), _word(custom.get("name")), _word(custom.get("input"))
    return _word(call.get("id")), "", ""


def canonical_arguments(arguments: str) -> str:
    """Arguments as canonical JSON if they parse, else unchanged; empty ones count as an empty object."""
    try:
        return canonical_json(json.loads(arguments.strip() or "{}", parse_float=_number))
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> int | float:
    """A whole number as an int, however it is written: JSON has one kind of number, and JavaScript writes 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() else value


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _content(content: object) -> Iterable[str]:
    if content is None or content in ("", []):
        yield "empty"
    elif isinstance(content, str):
        yield from ("text", content)
    elif isinstance(content, list) and len(content) == 1 and (text := _only_text(content[0])) is not None:
        yield from ("text", text) if text else ("empty",)
    elif isinstance(content, list):
        yield from ("parts", canonical_json([_part(part) for part in content]))
    else:
        yield from ("other", canonical_json(content))


def _only_text(part: object) -> str | None:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _part(part: object) -> object:
    if not isinstance(part, Mapping):
        return part
    return {key: value for key, value in part.items() if key not in _UNSEEN_PART_MEMBERS}


def _word(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical_json(value)
