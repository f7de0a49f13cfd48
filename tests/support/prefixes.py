"""What the strict upstreams share: canonical JSON, hashes of what stands before an item, a prompt cache, and tokens.

Two requests have the same prefix when their canonical items are the same: markers of the cache, nulls and a text in
place of one text block make no difference, as with the vendors.
"""

import base64
import hashlib
import json
import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from tests.support.replies import Json, dumped

PICTURE = 1_500  # tokens of a picture or a document, however many bytes of base64 it has
_EMPTY: tuple[object, ...] = (None, False, [])
_Found = TypeVar("_Found")


def remembered(find: Callable[[Json], _Found]) -> Callable[[Json], _Found]:
    """The same function of a JSON object, called once for all equal ones: clients send their history each turn."""

    @lru_cache(maxsize=4_096)
    def found(written: bytes) -> _Found:
        return find(marshal.loads(written))

    return lambda value: found(marshal.dumps(value, 2))


def canonical(value: Mapping[str, Any], without: Iterable[str] = ()) -> bytes:
    """An item without what clients add or leave out: absent, null, false and empty members are the same."""
    left_out = {"cache_control", *without}
    kept = {key: member for key, member in value.items() if key not in left_out and member not in _EMPTY}
    return json.dumps(kept, sort_keys=True).encode()


class Prefix:
    """A hash that grows with each item; `name` is that of all items so far, and `state` is enough to go on from."""

    def __init__(self, state: str = "") -> None:
        self.state = state

    def add(self, item: bytes) -> None:
        self.state = hashlib.sha256(self.state.encode() + hashlib.sha256(item).digest()).hexdigest()

    @property
    def name(self) -> str:
        return self.state[:16]


def name_of(text: str) -> str:
    """A short hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sealed(*fields: str) -> str:
    """An opaque text that holds these fields and what proves that they were sealed here."""
    told = ":".join(fields)
    return base64.b64encode(f"{told}:{name_of('secret ' + told)}".encode()).decode()


def unsealed(text: object) -> list[str] | None:
    """The fields of a sealed text, or None where it is none of ours."""
    try:
        *fields, proof = base64.b64decode(str(text), validate=True).decode().split(":")
    except ValueError:
        return None
    return fields if proof == name_of("secret " + ":".join(fields)) else None


def tokens(value: object) -> int:
    """About a token for four characters of text; pictures by the piece."""
    match value:
        case str():
            return len(value) // 4 + 1
        case list():
            return sum(map(tokens, value))
        case dict():
            if value.get("type") in ("base64", "url", "input_image", "input_file"):
                return PICTURE
            return 1 + sum(map(tokens, value.values()))
    return 1 if value is not None else 0


@dataclass(frozen=True)
class Cached:
    """The prompt tokens of one request by how the cache served them."""

    read: int
    written: int
    plain: int

    @property
    def total(self) -> int:
        return self.read + self.written + self.plain


@dataclass
class Cache:
    """The prefixes that earlier requests wrote."""

    _known: set[str] = field(default_factory=set)

    def serve(self, boundaries: Iterable[tuple[str, int, bool]]) -> Cached:
        """Read the longest known prefix and write up to the last marked one.

        A boundary is the name of a prefix, the tokens of its last item, and whether that item is marked.
        """
        total = read = marked = 0
        seen: list[tuple[str, int]] = []
        for name, size, mark in boundaries:
            total += size
            seen.append((name, total))
            if mark:
                marked = total
        read = max((upto for name, upto in seen if upto <= marked and name in self._known), default=0)
        self._known.update(name for name, upto in seen if upto <= marked)
        return Cached(read, marked - read, total - marked)


def event(payload: Json) -> bytes:
    """A server-sent event that is called as its `type`."""
    return f"event: {payload['type']}\n".encode() + b"data: " + dumped(payload) + b"\n\n"


def pieces(text: str, size: int = 12) -> Iterator[str]:
    """A text in the pieces of its deltas."""
    return (text[start : start + size] for start in range(0, len(text), size))
