"""Stored history: what clients have sent, in blocks of one turn each.

A block holds the messages that a request added to its branch: their digests, and their text unless only digests may be
kept. It is named by the chain digest that it ends with and says from which node it goes on, so the blocks of a session
are a tree, and the line to any node can be walked back. Blocks are never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strategies.core.digest import ROOT, link
from strategies.core.transcript import Transcript


class Stored(NamedTuple):
    """A stored message: the node before it, its digest, and its text where that was kept."""

    before: bytes
    digest: bytes
    raw: str | None


def new_block(transcript: Transcript, start: int, *, with_text: bool) -> dict[str, bytes]:
    """The block of the chain messages from `start` on, by its name; nothing where there are none."""
    messages = transcript.chain[start:]
    if not messages:
        return {}
    document = {
        "from": (transcript.digests[start - 1] if start else ROOT).hex(),
        "digests": [message.digest.hex() for message in messages],
        "messages": [message.raw for message in messages] if with_text else None,
    }
    return {transcript.digests[-1].hex(): json.dumps(document).encode()}


def nodes(blocks: Mapping[str, bytes]) -> dict[bytes, Stored]:
    """All stored messages by the chain digest that each ends."""
    found: dict[bytes, Stored] = {}
    for data in blocks.values():
        document = json.loads(data)
        if "digests" in document:
            _add(found, document["digests"], document["messages"], bytes.fromhex(document["from"]))
    return found


def _add(found: dict[bytes, Stored], digests: Sequence[str], texts: Sequence[str] | None, node: bytes) -> None:
    for i, digest in enumerate(bytes.fromhex(each) for each in digests):
        before, node = node, link(node, digest)
        found[node] = Stored(before, digest, texts[i] if texts is not None else None)


def line_to(head: bytes, found: Mapping[bytes, Stored]) -> list[Stored]:
    """The stored messages from the first one to `head`; empty where one of them is missing."""
    line: list[Stored] = []
    while head != ROOT:
        if head not in found:
            return []
        line.append(found[head])
        head = found[head].before
    return line[::-1]
