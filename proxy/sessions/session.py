"""Sessions: what is known of a conversation between its requests, and how a request finds its branch.

A session holds settings that stick, branches, and the condensations of all branches. A branch is known by its head:
the chain digest of the last message that a client sent on it, with the digest before that one, since a client may
rewrite its last message. A transcript continues the branch whose head, or the node before it, lies on its chain; the
longest counts. What diverges earlier is a fork: a new branch under an explicit id, a new session for a derived one.

Everything here is pure; the driver reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from proxy.calibration.anchor import Anchor
from proxy.reply.ending import ending
from proxy.sessions.append import NO_LINE, Line
from strategies.core.cards import MemoryCard
from strategies.core.condensation import Condensation, Literal, Overlay
from strategies.core.digest import ROOT
from strategies.core.protocol import Verdict
from strategies.core.transcript import Role, Transcript
from strategies.memory.merging import settled

MAIN = "main"
MOST_BRANCHES = 64
MOST_VERDICTS = 16
MOST_PATCHES = 64
MOST_PATCH_CHARS = 512 * 1024
# What was first seen within one step counts as seen together, and what is older than the horizon as old.
SEEN_STEP = 300.0
SEEN_HORIZON = 24 * 3600.0


class MemoryBlock(NamedTuple):
    """A memory block: the chain digest after its user message, in hex, and the message that goes before it, as JSON."""

    node: str = ""
    raw: str = ""


NO_MEMORY_BLOCK = MemoryBlock()
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Branch:
    """A line of history: `count` chain messages up to the digest `head`; `before` is the node ahead of it.

    `applied` is the id of the condensation in its last view, "" for none. `seen` has pairs of a chain length and the
    time at which the messages up to it had come, in order. `block` is the memory block of its last user message.
    `anchor` is what the upstream has counted for its last view that has a count. `reply` is how the reply to its head
    ends, "" where that is not known.
    """

    name: str
    head: bytes
    before: bytes
    count: int
    last_used: float = 0.0
    applied: str = ""
    seen: tuple[tuple[int, float], ...] = ()
    block: MemoryBlock = NO_MEMORY_BLOCK
    anchor: Anchor | None = None
    reply: str = ""


class Session(NamedTuple):
    """One session as it is stored. `settings` are those that stick; `totals` are counts of tokens and requests.

    `saved` are tokens, by the id of the condensation that has left them out of the requests that rested on it.

    `line` is the history that append mode has stored. `verdicts` are the newest ones of judges, oldest first, and
    `judging` is the last state of judgement, for people. `added` are memory cards that a person wrote, `forgotten` the
    ids of those that a person does not want. `patches` are hidden rounds, the newest last. It `forked` behind so
    many messages of its parent, whose blocks are that one's until it goes on: so long they are `inherited`.
    """

    id: str
    source: str
    created_at: float
    parent: str | None = None
    settings: Mapping[str, Any] = NOTHING
    branches: tuple[Branch, ...] = ()
    opened: int = 0
    totals: Mapping[str, int] = NOTHING
    saved: Mapping[str, int] = NOTHING
    condensations: tuple[Condensation, ...] = ()
    line: Line = NO_LINE
    verdicts: tuple[Verdict, ...] = ()
    judging: Mapping[str, Any] = NOTHING
    added: tuple[MemoryCard, ...] = ()
    forgotten: tuple[str, ...] = ()
    patches: tuple[Overlay, ...] = ()
    inherited: int = 0
    forked: int = 0
    revision: int = 0

    @property
    def derived(self) -> bool:
        """Whether it was recognised by its chain, not named."""
        return self.source == "derived"

    def branch_of(self, digests: Sequence[bytes]) -> Branch | None:
        """The branch that a transcript with these chain digests continues, or None for a new one."""
        found = [branch for branch in self.branches if continues(branch, digests, answered=self.derived)]
        if len(found) < 2:
            return found[0] if found else None
        return max(found, key=lambda branch: (shared(branch, digests), branch.last_used))

    def branch_for(self, digests: Sequence[bytes]) -> str:
        """The name of the branch that a transcript with these chain digests continues, or opens."""
        return self._name_of(self.branch_of(digests))

    def _name_of(self, branch: Branch | None) -> str:
        return branch.name if branch else branch_name(self.opened + 1)

    def new_in(self, digests: Sequence[bytes]) -> tuple[range, ...]:
        """The messages of a transcript whose blocks it does not have: runs that end at its end, or where it forked."""
        end, branch = len(digests), self.branch_of(digests)
        if branch is None:
            return (range(0 if self.branches else self.inherited, end),)
        return range(self.inherited), range(shared(branch, digests), end)

    def advanced(
        self,
        digests: Sequence[bytes],
        now: float,
        applied: str = "",
        block: MemoryBlock = NO_MEMORY_BLOCK,
        anchor: Anchor | None = None,
        reply: str = "",
    ) -> tuple[Session, Branch]:
        """The session with the branch of this transcript moved to its end, or opened; `reply` is how that ends."""
        old = self.branch_of(digests)
        opened = self.opened + (old is None)
        name = self._name_of(old)
        seen = seen_since(old.seen if old else (), shared(old, digests) if old else 0, len(digests), now)
        anchor = anchor or (old.anchor if old else None)
        branch = Branch(name, digests[-1], node_before(digests), len(digests), now, applied, seen, block, anchor, reply)
        others = [each for each in self.branches if old is None or each.name != old.name]
        kept = sorted([*others, branch], key=lambda each: each.last_used)[-MOST_BRANCHES:]
        # A fork that goes on is a conversation of its own: from now on it has all of its blocks.
        inherited = self.inherited if old is None else 0
        return self._replace(branches=tuple(kept), opened=opened, inherited=inherited), branch

    def cards(self, condensations: Iterable[Condensation] | None = None) -> list[MemoryCard]:
        """The memory cards of condensations, by default all of the session's, and those that a person wrote.

        Oldest first; what a later card contradicts is among them, marked.
        """
        known = self.condensations if condensations is None else condensations
        made = [card for each in sorted(known, key=lambda each: each.created_at) for card in each.cards]
        told = sorted((*made, *self.added), key=lambda card: card.created_at)
        return [card for card in settled(tuple(told)) if card.id not in self.forgotten]

    def judged(self, verdict: Verdict, judging: Mapping[str, Any]) -> Session:
        """The session with one more verdict, and the state of judgement after it."""
        return self._replace(verdicts=(*self.verdicts, verdict)[-MOST_VERDICTS:], judging=judging)

    def passes_on(self, count: int) -> bool:
        """Whether a fork behind its first `count` messages gets anything from it that its own parent has not."""
        records = [each.covered for each in self.condensations] + [each.at for each in self.patches]
        return count > self.forked or any(covered <= count for covered in records)

    def patched(self, patch: Overlay | None, digests: Sequence[bytes], covered: int) -> Session:
        """The session with the hidden rounds of a request with these chain digests, if it had any.

        They take the place of those that another reply to the same message had. What the view's head covers goes, and
        of all the rest the oldest beyond the bounds.
        """
        if patch is None and not self.patches:
            return self
        kept = [each for each in self.patches if not (each.at <= covered and has_node(digests, each.at, each.anchor))]
        if patch is not None:
            kept = [*(each for each in kept if (each.anchor, each.at) != (patch.anchor, patch.at)), patch]
        sizes = accumulate(_size(each) for each in reversed(kept))
        most = sum(1 for size in sizes if size <= MOST_PATCH_CHARS)
        return self._replace(patches=tuple(kept[max(len(kept) - min(most, MOST_PATCHES), 0) :]))

    def saved_with(self, condensation: str, tokens: int) -> Mapping[str, int]:
        """What is `saved` after one more request that rests on a condensation, "" for none."""
        if not condensation:
            return self.saved
        return {**self.saved, condensation: self.saved.get(condensation, 0) + max(tokens, 0)}

    def raised(self, **more: int) -> dict[str, int]:
        """Its totals with so many more."""
        return {**self.totals, **{key: self.totals.get(key, 0) + count for key, count in more.items()}}

    def counted(self, **more: int) -> Session:
        """The session with its totals raised."""
        return self._replace(totals=self.raised(**more))


def continues(branch: Branch, digests: Sequence[bytes], *, answered: bool) -> bool:
    """Whether a transcript goes on from the branch's head, or from the node before it: the last message was rewritten.

    Where that must be `answered`, something has to follow it; else it may be another conversation that began alike.
    """
    if has_node(digests, branch.count, branch.head):
        return True
    if answered and len(digests) <= branch.count:
        return False
    return branch.count > 1 and has_node(digests, branch.count - 1, branch.before)


def is_answered_alike(branch: Branch, transcript: Transcript) -> bool:
    """Whether a transcript that continues a branch, and has rewritten its last message, may be the same conversation.

    Clients rewrite a user's message, not what a tool has said, and the reply that follows it is the one that was given
    to it, as far as that is known. What a client began for the assistant is completed by the reply itself.
    """
    if has_node(transcript.digests, branch.count, branch.head):
        return True
    rewritten, *since = transcript.chain[branch.count - 1 :]
    if rewritten.role is not Role.USER:
        return rewritten.role is Role.ASSISTANT
    return not branch.reply or (bool(since) and ending(since[0].text) == branch.reply)


def shared(branch: Branch, digests: Sequence[bytes]) -> int:
    """How many messages a transcript that continues a branch has in common with it."""
    return branch.count if has_node(digests, branch.count, branch.head) else branch.count - 1


def _size(patch: Overlay) -> int:
    return sum(len(piece.raw) for piece in patch.pieces if isinstance(piece, Literal))


def seen_since(seen: Sequence[tuple[int, float]], shared: int, count: int, now: float) -> tuple[tuple[int, float], ...]:
    """When the first `count` messages of a branch had come, of which `shared` were there before; a few pairs only."""
    kept = [(min(length, shared), at) for length, at in seen if min(length, shared) > 0]
    old = [pair for pair in kept if now - pair[1] > SEEN_HORIZON][-1:]
    recent = [pair for pair in kept if now - pair[1] <= SEEN_HORIZON]
    if recent and now - recent[-1][1] < SEEN_STEP:
        return (*old, *recent[:-1], (count, recent[-1][1]))
    return (*old, *recent, (count, now))


def has_node(digests: Sequence[bytes], count: int, node: bytes) -> bool:
    """Whether the chain has `node` after its first `count` messages."""
    return count <= len(digests) and digests[count - 1] == node


def node_before(digests: Sequence[bytes]) -> bytes:
    """The chain digest before the last message."""
    return digests[-2] if len(digests) > 1 else ROOT


def branch_name(number: int) -> str:
    """`main`, then `b2`, `b3`, …"""
    return MAIN if number <= 1 else f"b{number}"


def with_depth(name: str, depth: int) -> str:
    """A branch's name with the number of condensations in its view: `main++`, `main+4`."""
    return name + ("+" * depth if depth <= 3 else f"+{depth}")
