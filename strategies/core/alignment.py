"""Alignment: recognises a history whose client has dropped its oldest messages.

docs/internals/sessions.md says which transcripts are matched, and why no others are: a short "continue" must never
bring in another history.

The stored messages form a tree. A node is the chain digest up to and including its message, and each message names the
node before it. So the next node of a run is computed, not searched for; only the beginning of a run is looked up, by
the digest of its message. The cost is one step for each place where the first sent message is stored, and then one step
for each message of the run and of its branch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from strategies.core.messages import ROOT, link

MIN_RUN = 4


class TreeMessage(Protocol):
    """A stored message as alignment sees it: the node before it, and its own digest."""

    @property
    def before(self) -> bytes: ...
    @property
    def digest(self) -> bytes: ...


M = TypeVar("M", bound=TreeMessage)


@dataclass(slots=True)
class Tree(Generic[M]):
    """The stored messages of one session: `messages` by node, and `places`, the nodes by message digest."""

    messages: dict[bytes, M] = field(default_factory=dict)
    places: dict[bytes, list[bytes]] = field(default_factory=dict)

    def add(self, message: M) -> bytes:
        """Adds a message, if it is new; returns its node."""
        node = link(message.before, message.digest)
        if node not in self.messages:
            self.messages[node] = message
            self.places.setdefault(message.digest, []).append(node)
        return node

    def line(self, node: bytes) -> list[M]:
        """The messages from the first one to `node`; empty if one of them is missing."""
        messages: list[M] = []
        while node != ROOT:
            if node not in self.messages:
                return []
            messages.append(self.messages[node])
            node = messages[-1].before
        return messages[::-1]


class Alignment(NamedTuple):
    """The client left out the stored messages up to the node `before`; with `kept_first`, all except the first."""

    before: bytes
    kept_first: bool


def align(
    tree: Tree[M], heads: Collection[bytes], sent: Sequence[bytes], is_assistant: Sequence[bool]
) -> Alignment | None:
    """Where the sent messages continue a stored branch; None if they fit nowhere, or in more than one place.

    `sent` are their digests, and `is_assistant` says for each whether it is the assistant's. `heads` are the nodes at
    which the stored branches end.
    """
    before = _node_before_run(tree, heads, sent, is_assistant)
    if before is not None:
        return Alignment(before, kept_first=False)
    if not sent or (first := link(ROOT, sent[0])) not in tree.messages:
        return None
    before = _node_before_run(tree, heads, sent[1:], is_assistant[1:])
    skipped = [] if before is None else tree.line(before)
    if before is None or before == first or not skipped or skipped[0].digest != sent[0]:
        return None
    return Alignment(before, kept_first=True)


def _node_before_run(
    tree: Tree[M], heads: Collection[bytes], sent: Sequence[bytes], is_assistant: Sequence[bool]
) -> bytes | None:
    """The node before the stored run that begins like `sent` and reaches a head; None if there is none, or several."""
    runs = list(_openings(tree, sent))
    if len(runs) > 1:
        # A run that leads to no head is no longer part of the history: its client has rewritten a message.
        lines: set[bytes] = set()
        for node in heads:
            while node not in lines and node in tree.messages:
                lines.add(node)
                node = tree.messages[node].before  # noqa: PLW2901 - the way back from the head
        runs = [run for run in runs if run[-1] in lines]
    if len(runs) != 1:
        return None
    length = _reach(runs[0], sent, heads, tree.messages)
    return tree.messages[runs[0][0]].before if length >= MIN_RUN and any(is_assistant[:length]) else None


def _openings(tree: Tree[M], sent: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The nodes of each stored run that equals the first four sent messages, unless it begins the history."""
    if len(sent) < MIN_RUN:
        return
    for start in tree.places.get(sent[0], ()):
        if tree.messages[start].before == ROOT:
            continue
        run = [start]
        for digest in sent[1:MIN_RUN]:
            node = link(run[-1], digest)
            if node not in tree.messages:
                break
            run.append(node)
        else:
            yield run


def _reach(run: Sequence[bytes], sent: Sequence[bytes], heads: Collection[bytes], messages: Mapping[bytes, M]) -> int:
    """How many of the sent messages lead from the run's beginning to the farthest head; 0 if they reach none."""
    reached = MIN_RUN if run[-1] in heads else 0
    node = run[-1]
    for length, digest in enumerate(sent[MIN_RUN:], MIN_RUN + 1):
        node = link(node, digest)
        if node not in messages:
            break
        if node in heads:
            reached = length
    return reached
