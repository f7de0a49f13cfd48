"""Append mode: the client sends only what is new, the proxy supplies what came before.

Each append stores one immutable block: the messages that were sent and the reply, linked to the block before. The
session names its newest block. A head, `<count>-<digest>`, is the chain up to the last message that was sent; the
reply belongs to it. With `If-Head` an append is guarded: it must name the newest head, or be the very append that led
to it, which then replaces it, reply and all. Messages and reply are stored together or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.errors import HeadMismatch
from proxy.request.message_cache import Element
from proxy.sessions.blocks import VERSION
from strategies.core.digest import ROOT, chain
from strategies.core.transcript import dump

NO_HEAD = f"0-{ROOT.hex()}"


@dataclass(frozen=True, slots=True)
class Line:
    """An appended history as it is stored: its head and the name of its newest block."""

    head: str = NO_HEAD
    block: str = ""


NO_LINE = Line()


@dataclass(frozen=True, slots=True)
class History:
    """What is stored: messages up to and with the newest reply, and the same as before the newest append."""

    line: Line = NO_LINE
    elements: tuple[Element, ...] = ()
    line_before: Line = NO_LINE
    elements_before: tuple[Element, ...] = ()


@dataclass(frozen=True, slots=True)
class Append:
    """One append: what it builds on, what the client sent, its head, and the head that stands until it is stored."""

    before: Line
    sent: tuple[Element, ...]
    head: str
    standing: str = NO_HEAD

    def block(self, reply: Mapping[str, Any]) -> tuple[Line, bytes]:
        """The block that stores this append with its reply, and the line that it makes."""
        document = {
            "v": VERSION,
            "before": [self.before.head, self.before.block],
            "messages": [element.raw for element in self.sent],
            "reply": dump(reply),
        }
        data = json.dumps(document).encode()
        return Line(self.head, blake2b(data, digest_size=16).hexdigest()), data


class Appended(NamedTuple):
    """What one append has stored: the line that it builds on, its messages, and the reply as the last of them."""

    before: Line
    elements: tuple[Element, ...]


def appended_in(document: Mapping[str, Any]) -> Appended | None:
    """The append in a block's document; None in a block of what clients have sent again and again."""
    if "before" not in document:
        return None
    raws = (*document["messages"], document["reply"])
    return Appended(Line(*document["before"]), tuple(Element.of(raw) for raw in raws))


def history(line: Line, blocks: Mapping[str, Appended]) -> History:
    """The history that ends with `line`; raises `KeyError` where a block is missing."""
    runs: list[Appended] = []
    at = line
    while at.block:
        runs.append(blocks[at.block])
        at = runs[-1].before
    elements = [element for run in reversed(runs) for element in run.elements]
    newest = len(runs[0].elements) if runs else 0
    before = runs[0].before if runs else NO_LINE
    return History(line, tuple(elements), before, tuple(elements[: len(elements) - newest]))


def head_of(count: int, digest: bytes) -> str:
    """A head as headers show it."""
    return f"{count}-{digest.hex()}"


def head_after(elements: Sequence[Element]) -> str:
    """The head of a history that ends with these messages."""
    digests = chain(each.digest for each in elements if each.role not in ("system", "developer"))
    return head_of(len(digests), digests[-1]) if digests else NO_HEAD


def appended(stored: History, sent: Sequence[Element], if_head: str | None) -> tuple[Append, tuple[Element, ...]]:
    """The append of `sent`, and the whole history with it.

    Raises `HeadMismatch` with the newest head where the guard names another one, unless this very append led to it.
    """
    line, before = stored.line, stored.elements
    if if_head is not None and if_head != line.head:
        line, before = stored.line_before, stored.elements_before
        if if_head != line.head or head_after((*before, *sent)) != stored.line.head:
            raise HeadMismatch(stored.line.head, if_head)
    whole = (*before, *sent)
    return Append(line, tuple(sent), head_after(whole), stored.line.head), whole
