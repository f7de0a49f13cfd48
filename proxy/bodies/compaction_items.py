"""The proxy's own compaction items of the Responses API: written for a client, and read when they come back.

A client keeps such an item as it keeps the vendor's, without looking into it. Its `encrypted_content` holds the
messages that stand for what was compacted: a mark, a signature, the length of the messages, and the messages, packed.
The signature covers the tenant, so the item of another tenant is refused like one that was cut or altered. Its key
comes from `tenant.pepper`, else from a secret in the store, so all replicas that agree on either read each other's
items. It is signed, not encrypted: whoever holds it holds the conversation that it is from.

In the request that reaches the rest of the proxy, the messages stand in the item's place, with the same bytes each
time. All items of a request are verified, their lengths summed up, and the memory for them held, before one is
unpacked. An item of the vendor's has no such mark and passes untouched.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from pydantic import SecretStr

from proxy.bodies.message_cache import Element
from proxy.bodies.wire import Body
from proxy.errors import BadRequest, BodyTooLarge, HistoryUnavailable
from proxy.http.admission import Place
from proxy.http.encodings import MAX_EXPANSION
from proxy.protocols.responses import COMPACTION
from proxy.store.base import StoreError
from proxy.values import word_at

PREFIX = "condenser-1-"
MAX_ITEMS = 64  # in one request; clients keep one or a few
_MARK = PREFIX.encode()
_KEY = "encrypted_content"
_SIGNATURE, _LENGTH = 32, 8  # bytes


class _Item(NamedTuple):
    length: int  # bytes of its messages
    packed: bytes


def _refused(place: int, why: str = "it is not of this caller, or was altered since") -> BadRequest:
    at = f"input[{place}]"
    message = f"The encrypted content of {at} could not be verified: {why}."
    return BadRequest(message, param=at, code="invalid_encrypted_content")


class CompactionItems:
    """Writes and reads items; one per app. `secret` is asked for what signs them where there is no `pepper`."""

    def __init__(self, pepper: SecretStr | None, secret: Callable[[], Awaitable[bytes]]) -> None:
        self._key = _key_of(pepper.get_secret_value().encode()) if pepper is not None else b""
        self._secret = secret

    async def _signing_key(self) -> bytes:
        if not self._key:
            self._key = _key_of(await self._secret())
        return self._key

    async def item(self, messages: Sequence[str], tenant: str) -> dict[str, str]:
        """The item that stands for messages, which are given as JSON text; raises `StoreError`."""
        content = await asyncio.to_thread(_written, messages, tenant, await self._signing_key())
        return {"type": COMPACTION, "id": f"cmp_{secrets.token_hex(12)}", _KEY: content}

    async def opened(self, body: Body, tenant: str, place: Place, most: int) -> bytes | None:
        """The bytes of a body, at most so many, with the messages of its items in their place; None if it has none.

        Raises `BadRequest` for an item that is not the tenant's and for more than a request may have, `Overloaded`, and
        `HistoryUnavailable` if the store cannot be asked for the key.
        """
        if _MARK not in body.data or not (contents := await asyncio.to_thread(_contents, body.elements)):
            return None  # at most, a text quotes one
        try:
            key = await self._signing_key()
        except StoreError as error:
            raise HistoryUnavailable(f"Compactions cannot be opened now ({error.reason}).") from None
        items = await asyncio.to_thread(_verified, contents, tenant, key)
        size = len(body.data) + sum(item.length - len(contents[at]) for at, item in items.items())
        try:
            await place.grow(size, most)
        except BodyTooLarge:
            raise _refused(max(items), f"with what it stands for, the request has more than {most:,} bytes") from None
        return await asyncio.to_thread(_spliced, body, items)


def _key_of(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=32, person=COMPACTION.encode()).digest()


def _signature(signed: bytes, tenant: str, key: bytes) -> bytes:
    return blake2b(tenant.encode("utf-8", "surrogatepass") + b"\0" + signed, key=key, digest_size=_SIGNATURE).digest()


def _written(messages: Sequence[str], tenant: str, key: bytes) -> str:
    plain = ",".join(messages).encode("utf-8", "surrogatepass")
    # Filled up, so that no request is refused for what it expands to.
    packed = zlib.compress(plain).ljust(math.ceil(len(plain) / MAX_EXPANSION), b"\0")
    signed = len(plain).to_bytes(_LENGTH) + packed
    return PREFIX + urlsafe_b64encode(_signature(signed, tenant, key) + signed).decode()


def _contents(elements: Sequence[Element]) -> dict[int, str]:
    """What the items of the proxy's own hold, by their places."""
    marked = ((place, element.value) for place, element in enumerate(elements) if _MARK in element.data)
    held = ((place, word_at(value, _KEY)) for place, value in marked if word_at(value, "type") == COMPACTION)
    return {place: content for place, content in held if content.startswith(PREFIX)}


def _verified(contents: Mapping[int, str], tenant: str, key: bytes) -> dict[int, _Item]:
    """The items by their places; raises `BadRequest`."""
    items: dict[int, _Item] = {}
    seen: set[bytes] = set()
    for place, content in contents.items():
        try:
            data = urlsafe_b64decode(content.removeprefix(PREFIX).encode("ascii"))
        except ValueError:
            raise _refused(place) from None
        signature, signed = data[:_SIGNATURE], data[_SIGNATURE:]
        if not secrets.compare_digest(signature, _signature(signed, tenant, key)):
            raise _refused(place)
        if signature in seen or len(seen) == MAX_ITEMS:
            raise _refused(place, f"a request has at most {MAX_ITEMS} of them, and none twice")
        seen.add(signature)
        items[place] = _Item(int.from_bytes(signed[:_LENGTH]), signed[_LENGTH:])
    return items


def _spliced(body: Body, items: Mapping[int, _Item]) -> bytes:
    texts = (
        _messages(items[place], place) if place in items else element.data
        for place, element in enumerate(body.elements)
    )
    return body.spliced(messages=b"[%b]" % b",".join(filter(None, texts)))


def _messages(item: _Item, place: int) -> bytes:
    try:
        plain = zlib.decompressobj().decompress(item.packed, item.length + 1)
    except zlib.error:
        raise _refused(place) from None
    if len(plain) != item.length:
        raise _refused(place)
    return plain
