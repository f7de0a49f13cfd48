"""The blocks that a session's history is stored in, one for each turn.

A block holds the messages that a request added to its branch: their digests, and their text unless only digests may be
kept. Its name is the chain digest that it ends with, and it holds the chain digest that it goes on from. So the blocks
of a session form a tree, and the path to any node can be walked back to the root. Blocks never change.

A block has a schema version; a block without one is older than the versions. A block of a newer version is a miss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strategies.core.digest import ROOT, link
from strategies.core.transcript import Transcript

VERSION = 1


class StoredMessage(NamedTuple):
    """A stored message: the chain digest before it, its own digest, and its text where that was kept."""

    before: bytes
    digest: bytes
    raw: str | None


def new_block(transcript: Transcript, start: int, end: int | None = None, *, keeps_text: bool) -> dict[str, bytes]:
    """The block of the chain messages from `start` to `end`, by its name; empty where there are no such messages."""
    messages = transcript.chain[start:end]
    if not messages:
        return {}
    document = {
        "v": VERSION,
        "from": (transcript.digests[start - 1] if start else ROOT).hex(),
        "digests": [message.digest.hex() for message in messages],
        "messages": [message.raw for message in messages] if keeps_text else None,
    }
    return {transcript.digests[start + len(messages) - 1].hex(): json.dumps(document).encode()}


def block_document(data: bytes) -> dict[str, Any]:
    """The document of a stored block; empty where a newer version wrote it. Raises ValueError for what is no block."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("a block is no object")  # noqa: TRY004
    return document if document.get("v", VERSION) <= VERSION else {}


def messages_of(document: Mapping[str, Any]) -> list[StoredMessage]:
    """The messages in a block's document, in order; none in a block of append mode."""
    if "digests" not in document:
        return []
    digests: Sequence[str] = document["digests"]
    texts: Sequence[str | None] = document["messages"] or [None] * len(digests)
    node = bytes.fromhex(document["from"])
    messages: list[StoredMessage] = []
    for digest, raw in zip(map(bytes.fromhex, digests), texts, strict=True):
        messages.append(StoredMessage(node, digest, raw))
        node = link(node, digest)
    return messages
