"""Append mode: the client sends only its new messages, and the proxy supplies the stored ones before them.

Each append stores one immutable block: the messages that the client sent and the reply, linked to the block before.
The session names its newest block. A head, `<count>-<digest>`, is the length and the chain digest of the history up to
the last message that the client sent; the reply is stored under that head. A client guards an append with `If-Head`:
it must name the newest head. If it names the head before, and its messages lead to the newest one, it repeats the
append that was stored last, and replaces that append, the reply included. Messages and reply are stored together or not
at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.controls import Controls
from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.replies import Items
from proxy.errors import BadRequest, HeadMismatch
from proxy.request.message_cache import Element
from proxy.request.wire import Body
from proxy.sessions.session import EMPTY, NO_TIP, Tip
from strategies.core.digest import chain
from strategies.core.messages import dump

VERSION = 1
"""The schema of blocks, those of appends and all others."""


@dataclass(frozen=True, slots=True)
class History:
    """An appended history up to and with its newest reply, and the same history before its newest append."""

    tip: Tip = NO_TIP
    elements: tuple[Element, ...] = ()
    tip_before: Tip = NO_TIP
    elements_before: tuple[Element, ...] = ()


@dataclass(frozen=True, slots=True)
class Append:
    """One append that is not stored yet: the tip it builds on, the messages that the client sent, and its head.

    `current_head` is the newest stored head, which stays valid until the append is stored.
    """

    base: Tip
    sent: tuple[Element, ...]
    head: str
    current_head: str = EMPTY

    def block(self, reply: Items) -> tuple[Tip, bytes]:
        """The tip of the history after this append, and the block that stores the append with its reply.

        The last item of the reply stands by itself, as it has since every reply was one message.
        """
        *items, last = map(dump, reply)
        document = {
            "v": VERSION,
            "before": [self.base.head, self.base.block],
            "messages": [*(element.raw for element in self.sent), *items],
            "reply": last,
        }
        data = json.dumps(document).encode()
        return Tip(self.head, blake2b(data, digest_size=16).hexdigest()), data


class StoredAppend(NamedTuple):
    """One append as it was stored: the tip it builds on, and its messages with the reply as the last of them."""

    base: Tip
    elements: tuple[Element, ...]


def decode_append(document: Mapping[str, Any], endpoint: Endpoint) -> StoredAppend | None:
    """The append in a block's document; None for a block of a client that sends its whole history each time."""
    if "before" not in document:
        return None
    raws = (*document["messages"], document["reply"])
    return StoredAppend(Tip(*document["before"]), tuple(Element.of(raw, endpoint) for raw in raws))


def history_at(tip: Tip, blocks: Mapping[str, StoredAppend]) -> History:
    """The history that ends at `tip`; raises `KeyError` where a block is missing."""
    appends: list[StoredAppend] = []
    at = tip
    while at.block:
        appends.append(blocks[at.block])
        at = appends[-1].base
    elements = [element for each in reversed(appends) for element in each.elements]
    newest = len(appends[0].elements) if appends else 0
    before = appends[0].base if appends else NO_TIP
    return History(tip, tuple(elements), before, tuple(elements[: len(elements) - newest]))


def head_of(count: int, digest: bytes) -> str:
    """A head as headers show it."""
    return f"{count}-{digest.hex()}"


def head_after(elements: Sequence[Element]) -> str:
    """The head of a history that ends with these messages."""
    digests = chain(each.digest for each in elements if each.role not in each.endpoint.dialect.system_roles)
    return head_of(len(digests), digests[-1]) if digests else EMPTY


def append_to(stored: History, sent: Sequence[Element], if_head: str | None) -> tuple[Append, tuple[Element, ...]]:
    """The append of the `sent` messages to a stored history, and the whole history with them.

    Raises `HeadMismatch` with the newest head where `if_head` names another one, unless this is a repetition of the
    append that led to the newest head.
    """
    base, before = stored.tip, stored.elements
    if if_head is not None and if_head != base.head:
        base, before = stored.tip_before, stored.elements_before
        if if_head != base.head or head_after((*before, *sent)) != stored.tip.head:
            raise HeadMismatch(stored.tip.head, if_head)
    history = (*before, *sent)
    return Append(base, tuple(sent), head_after(history), stored.tip.head), history


def check_append(controls: Controls, body: Body, session: str | None, *, keeps_text: bool) -> None:
    """Raises `BadRequest` unless the store keeps text, the session is named, storing is allowed, and `n` is 1."""
    if not keeps_text:
        raise BadRequest('X-Condenser-History: append needs store.content = "full".', param=controls.param("history"))
    if session is None:
        raise BadRequest("X-Condenser-History: append needs X-Condenser-Session.", param="X-Condenser-Session")
    if controls.no_store:
        raise BadRequest(
            "X-Condenser-History: append cannot be combined with X-Condenser-No-Store.",
            param=controls.param("no-store"),
        )
    if not body.endpoint.has_one_choice(body.values):
        raise BadRequest("X-Condenser-History: append supports n = 1 only.", param="n")
