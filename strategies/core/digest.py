"""Digests of messages and the chain over them.

Two messages have the same digest if a client may well mean the same message: SDKs rebuild a reply before they send it
back, drop `null` members, add fields of their own, or write the arguments of a call with different spacing. So a digest
covers only these fields, which the message's dialect chooses, in a canonical form:

    role, name, content, calls (id, name, arguments), the ids of the calls that it answers

Arguments are compared as JSON if they parse; `""` equals `{}`, and 1.0 equals 1. Equal messages of two dialects have
different digests, so a history in one dialect is never found in another.

The chain is h_i = H(h_{i-1}, digest_i): equal chain digests mean equal histories up to that message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from itertools import accumulate

DIGEST_BYTES = 16
ROOT = b"\x00" * DIGEST_BYTES

_UNNAMED = "chat"  # its digests were stored before there were other dialects


def digest_of(dialect: str, fields: Iterable[str]) -> bytes:
    """The digest of the fields of one message, 16 bytes."""
    hasher = blake2b(digest_size=DIGEST_BYTES, person=b"" if dialect == _UNNAMED else dialect.encode())
    for field in fields:
        data = field.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "big"))
        hasher.update(data)
    return hasher.digest()


def chain(digests: Iterable[bytes], root: bytes = ROOT) -> list[bytes]:
    """The chain digest after each message, in order."""
    return list(accumulate(digests, link, initial=root))[1:]


def link(previous: bytes, digest: bytes) -> bytes:
    """The chain digest after `previous` and one more message with `digest`."""
    return blake2b(previous + digest, digest_size=DIGEST_BYTES).digest()


def canonical_arguments(arguments: str) -> str:
    """Arguments as canonical JSON if they parse, else unchanged; an empty text counts as an empty object."""
    try:
        return canonical_json(json.loads(arguments.strip() or "{}", parse_float=_number))
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> int | float:
    """A whole number as an int, even if written as 1.0: JSON has one kind of number, and JavaScript writes 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() else value


def canonical_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
