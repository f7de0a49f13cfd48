"""Alignment: recognising a history whose client has dropped its oldest messages.

Some clients send a window of their history: the newest N messages, or the first one and those. Such a transcript is
no prefix of anything, but it is one unbroken run of what is stored that reaches the stored head. Only that counts: a
run that is found once, in all lines of the session, of at least four messages with an assistant's among them, so that
a short "continue" never drags in another history. A front message that was never stored means that the client has
compacted by itself; then there is no alignment, and nothing of the old history is put back.

What is stored is a tree: each message hangs on the node before it, and its own node is the chain digest that it ends.
So where a run goes on is never searched, it is computed; only its beginning is looked up, by the digest of its message.
The cost is that of the places at which the first sent message stands, and then of the run and the line, once each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from strategies.core.digest import ROOT, link

LEAST_RUN = 4


class Message(Protocol):
    """A stored message as far as alignment knows it: the node before it, and its own digest."""

    @property
    def before(self) -> bytes: ...
    @property
    def digest(self) -> bytes: ...


M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class Tree(Generic[M]):
    """Stored messages of one session: by the node that each ends, and the nodes by the digest of their message."""

    messages: dict[bytes, M] = field(default_factory=dict)
    places: dict[bytes, list[bytes]] = field(default_factory=dict)

    def add(self, message: M) -> bytes:
        """Adds a message unless it is known; its node."""
        node = link(message.before, message.digest)
        if node not in self.messages:
            self.messages[node] = message
            self.places.setdefault(message.digest, []).append(node)
        return node

    def line(self, node: bytes) -> list[M]:
        """The messages from the first one to `node`; empty where one of them is missing."""
        line: list[M] = []
        while node != ROOT:
            message = self.messages.get(node)
            if message is None:
                return []
            line.append(message)
            node = message.before
        line.reverse()
        return line


class Alignment(NamedTuple):
    """The client has left out the stored messages up to the node `before`, but for the first where `kept_first`."""

    before: bytes
    kept_first: bool


def align(
    tree: Tree[M], heads: Collection[bytes], sent: Sequence[bytes], is_assistant: Sequence[bool]
) -> Alignment | None:
    """How `sent` message digests lie on a line to one of `heads`, or None where they do not, or not in one way only.

    `is_assistant` says of each sent message whether it is the assistant's.
    """
    before = _left_out(tree, heads, sent, is_assistant)
    if before is not None:
        return Alignment(before, kept_first=False)
    if not sent or (first := link(ROOT, sent[0])) not in tree.messages:
        return None
    before = _left_out(tree, heads, sent[1:], is_assistant[1:])
    if before is None or before == first or _first_node(tree.messages, before) != first:
        return None
    return Alignment(before, kept_first=True)


def _left_out(
    tree: Tree[M], heads: Collection[bytes], sent: Sequence[bytes], is_assistant: Sequence[bool]
) -> bytes | None:
    """The node behind which the only run of the session that begins as `sent` does reaches a head."""
    runs = list(_openings(tree, sent))
    if len(runs) > 1:
        # What hangs on no head any more is no history of this session: a message that its client has rewritten.
        lines = _nodes_to(heads, tree.messages)
        runs = [run for run in runs if run[-1] in lines]
    if len(runs) != 1:
        return None
    length = _reach(runs[0], sent, heads, tree.messages)
    return tree.messages[runs[0][0]].before if length >= LEAST_RUN and any(is_assistant[:length]) else None


def _openings(tree: Tree[M], sent: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The nodes of each run, not from the first message on, that is the first four that were sent."""
    if len(sent) < LEAST_RUN:
        return
    for start in tree.places.get(sent[0], ()):
        if tree.messages[start].before == ROOT:
            continue
        run = [start]
        for digest in sent[1:LEAST_RUN]:
            node = link(run[-1], digest)
            if node not in tree.messages:
                break
            run.append(node)
        else:
            yield run


def _nodes_to(heads: Collection[bytes], messages: Mapping[bytes, M]) -> set[bytes]:
    """The nodes of all lines that lead to a head."""
    found: set[bytes] = set()
    for head in heads:
        node = head
        while node not in found and node in messages:
            found.add(node)
            node = messages[node].before
    return found


def _reach(run: Sequence[bytes], sent: Sequence[bytes], heads: Collection[bytes], messages: Mapping[bytes, M]) -> int:
    """How many of the sent messages lead from the run's beginning to the farthest head; 0 where they reach none."""
    reached = LEAST_RUN if run[-1] in heads else 0
    node = run[-1]
    for length, digest in enumerate(sent[LEAST_RUN:], LEAST_RUN + 1):
        node = link(node, digest)
        if node not in messages:
            break
        if node in heads:
            reached = length
    return reached


def _first_node(messages: Mapping[bytes, M], node: bytes) -> bytes | None:
    """The first node of the line that leads to `node`; None where a message of it is missing."""
    while node in messages:
        if messages[node].before == ROOT:
            return node
        node = messages[node].before
    return None
