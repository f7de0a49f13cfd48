"""Stored history: what clients have sent, in blocks of one turn each.

A block holds the messages that a request added to its branch: their digests, and their text unless only digests may be
kept. It is named by the chain digest that it ends with and says from which node it goes on, so the blocks of a session
are a tree, and the line to any node can be walked back. Blocks are never changed.

A block has a schema version; one without was written before there were versions. One of a newer version is a miss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strategies.core.digest import ROOT, link
from strategies.core.transcript import Transcript

VERSION = 1


class Stored(NamedTuple):
    """A stored message: the node before it, its digest, and its text where that was kept."""

    before: bytes
    digest: bytes
    raw: str | None


def new_block(transcript: Transcript, start: int, end: int | None = None, *, with_text: bool) -> dict[str, bytes]:
    """The block of the chain messages from `start` to `end`, by its name; nothing where there are none."""
    messages = transcript.chain[start:end]
    if not messages:
        return {}
    document = {
        "v": VERSION,
        "from": (transcript.digests[start - 1] if start else ROOT).hex(),
        "digests": [message.digest.hex() for message in messages],
        "messages": [message.raw for message in messages] if with_text else None,
    }
    return {transcript.digests[start + len(messages) - 1].hex(): json.dumps(document).encode()}


def block_document(data: bytes) -> dict[str, Any]:
    """What a stored block says; empty where a newer version wrote it. Raises ValueError for what is no block."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("a block is no object")  # noqa: TRY004
    return document if document.get("v", VERSION) <= VERSION else {}


def messages_of(document: Mapping[str, Any]) -> list[Stored]:
    """The messages in a block's document, in order; none in a block of append mode."""
    if "digests" not in document:
        return []
    digests: Sequence[str] = document["digests"]
    texts: Sequence[str | None] = document["messages"] or [None] * len(digests)
    node = bytes.fromhex(document["from"])
    found: list[Stored] = []
    for digest, raw in zip(map(bytes.fromhex, digests), texts, strict=True):
        found.append(Stored(node, digest, raw))
        node = link(node, digest)
    return found
