"""The proxy's own compaction items of the Responses API: written for a client, and read when they come back.

A client keeps such an item as it keeps the vendor's, without looking into it. Its `encrypted_content` holds the
messages that stand for what was compacted: a mark, a signature, and the messages, packed. The signature covers the
tenant, so the item of another tenant is refused like one that was cut or altered. Its key comes from the key of tenant
digests, so all replicas that agree on tenants read each other's items. It is signed, not encrypted: whoever holds it
holds the conversation that it is from.

In the request that reaches the rest of the proxy, the messages stand in the item's place, with the same bytes each
time. An item of the vendor's has no such mark and passes untouched.
"""

from __future__ import annotations

import json
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

from proxy.endpoints.responses import COMPACTION
from proxy.errors import BadRequest
from proxy.request.message_cache import Element
from proxy.request.wire import Body
from proxy.values import word_at

PREFIX = "condenser-1-"
_MARK = PREFIX.encode()
_KEY = "encrypted_content"
_SIGNATURE = 32  # bytes
MAX_UNPACKED = 64 * 1024 * 1024
_REFUSED = "The encrypted content of {} could not be verified: it is not of this caller, or was altered since."


def _content(element: Element) -> str:
    """What an item of the proxy's own holds; "" for any other element."""
    if _MARK not in element.data or word_at(element.value, "type") != COMPACTION:
        return ""
    content = word_at(element.value, _KEY)
    return content if content.startswith(PREFIX) else ""


class CompactionItems:
    """Writes and reads items; one per app. `secret` is the key of tenant digests."""

    def __init__(self, secret: bytes) -> None:
        self._key = blake2b(secret, digest_size=32, person=COMPACTION.encode()).digest()

    def item(self, messages: Sequence[str], tenant: str) -> dict[str, str]:
        """The item that stands for messages, which are given as JSON text."""
        packed = zlib.compress(json.dumps(list(messages)).encode())
        content = PREFIX + urlsafe_b64encode(self._signature(packed, tenant) + packed).decode()
        return {"type": COMPACTION, "id": f"cmp_{secrets.token_hex(12)}", _KEY: content}

    def opened(self, body: Body, tenant: str) -> bytes | None:
        """The bytes of a body with the messages of its items in their place; None if it has none.

        Raises `BadRequest` for an item that is not the tenant's.
        """
        if _MARK not in body.data:
            return None
        contents = [_content(element) for element in body.elements]
        if not any(contents):
            return None  # a text only quotes one
        texts = (
            self._messages(content, tenant, place) if content else [element.data]
            for place, (content, element) in enumerate(zip(contents, body.elements, strict=True))
        )
        return body.spliced(messages=b"[%b]" % b",".join(chain.from_iterable(texts)))

    def _messages(self, content: str, tenant: str, place: int) -> list[bytes]:
        refused = BadRequest(
            _REFUSED.format(f"input[{place}]"), param=f"input[{place}]", code="invalid_encrypted_content"
        )
        try:
            data = urlsafe_b64decode(content.removeprefix(PREFIX).encode("ascii"))
        except ValueError:
            raise refused from None
        signature, packed = data[:_SIGNATURE], data[_SIGNATURE:]
        if not secrets.compare_digest(signature, self._signature(packed, tenant)):
            raise refused
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(packed, MAX_UNPACKED)
        if unpacking.unconsumed_tail:
            raise refused
        return [text.encode("utf-8", "surrogatepass") for text in json.loads(plain)]

    def _signature(self, packed: bytes, tenant: str) -> bytes:
        return blake2b(tenant.encode("utf-8", "surrogatepass") + b"\0" + packed, key=self._key, digest_size=32).digest()
