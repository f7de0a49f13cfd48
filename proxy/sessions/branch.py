"""A branch: a line of history in a session, and how a transcript goes on from it.

A branch is known by its head, the chain digest of the last message that a client sent on it, by the digest before that,
since a client may rewrite its last message, and by the place where its newest turn begins, since a client may take out
again what it had put in front of its question. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from proxy.endpoints.replies import ending
from proxy.knowledge.anchor import Anchor
from strategies.core.digest import link
from strategies.core.messages import Role
from strategies.core.transcript import Transcript

MAX_OPENINGS = 4
"""The maximum number of user messages that make one question: files, context, and the question itself."""


class MemoryBlock(NamedTuple):
    """A memory block: the chain digest after its user message, in hex, and the message that goes before it, as JSON."""

    node: str = ""
    raw: str = ""


NO_MEMORY_BLOCK = MemoryBlock()


class Head(NamedTuple):
    """What the head of a view is: the id of its condensation, and a name for what it shows beyond that; "" for none."""

    applied: str = ""
    shown: str = ""


NO_HEAD = Head()


class Opening(NamedTuple):
    """A place where the newest turn of a branch may begin: how many chain messages come before, and their digest."""

    place: int
    node: bytes


@dataclass(frozen=True, slots=True)
class Branch:
    name: str
    """`main`, `b2`, `b3`, …"""
    head: bytes
    """The chain digest of the last message that a client sent on it."""
    before: bytes
    """The chain digest before that message."""
    count: int
    """How many chain messages lead up to the head."""
    last_used: float = 0.0
    """When a request last moved it, in seconds since the epoch."""
    applied: str = ""
    """The id of the condensation in its last view; "" for none."""
    seen: tuple[tuple[int, float], ...] = ()
    """Pairs of a chain length and the time by which the messages up to it had come, in order."""
    block: MemoryBlock = NO_MEMORY_BLOCK
    """The memory block of its last user message."""
    anchor: Anchor | None = None
    """The upstream's token count of the last view that has one."""
    reply: str = ""
    """How the reply to its head ends; "" where that is not known."""
    last: bytes = b""
    """The digest of its last message by itself; empty where an older version stored the branch."""
    openings: tuple[Opening, ...] = ()
    """Where its newest turn begins; several places, newest last, where that is not known."""
    may_be_side: bool = False
    """Whether it may be a side call, such as for a title: one request without tools, which none has continued."""
    applied_at: int = 0
    """The chain length when that head was first sent, in a dialect that binds reasoning; 0 if unknown."""
    shown: str = ""
    """What the head of its last view showed beyond that condensation, in a dialect that binds reasoning."""

    @property
    def turn(self) -> int | None:
        """The chain index at which its newest turn begins; None where that is not known."""
        return self.openings[0].place if len(self.openings) == 1 else None


def continues(branch: Branch, transcript: Transcript, *, answered: bool) -> bool:
    """Whether a transcript goes on from the branch's head, or from the node before it with the last message rewritten.

    With `answered`, a rewritten last message counts only if something follows it; otherwise the transcript may be
    another conversation that began alike. A last message that has moved always counts only then.
    """
    digests, size = transcript.digests, len(transcript.chain)
    if branch.count <= size and digests[branch.count - 1] == branch.head:
        return True
    place = place_of_last(branch, transcript)
    if place is None:
        return False
    return size > place + 1 or (common_length(branch, digests) == branch.count - 1 and not answered)


def place_of_last(branch: Branch, transcript: Transcript) -> int | None:
    """Where a transcript has the branch's last message, or what rewrote it; None where it does not go on from there."""
    shared = common_length(branch, transcript.digests)
    if shared >= branch.count - 1:
        return branch.count - 1 if shared else None
    place = _place_from(branch, transcript, shared) if shared else None
    return None if place == branch.count - 1 else place


def _place_from(branch: Branch, transcript: Transcript, start: int) -> int | None:
    """The first place from `start` on, of at least 1, where a transcript has the branch's last message.

    If that was rewritten, it is known by the reply that follows it.
    """
    digests = transcript.digests
    places = range(start, min(len(digests), branch.count))
    same = (place for place in places if link(digests[place - 1], branch.last) == digests[place])
    answered = (place for place in places if _has_reply(branch, transcript, place))
    return next(same, next(answered, None))


def _has_reply(branch: Branch, transcript: Transcript, place: int) -> bool:
    """Whether the user message at a place is followed by the reply to the branch's last request, as far as known."""
    asked, *since = transcript.chain[place : place + 2]
    return bool(
        branch.reply
        and asked.role is Role.USER
        and since
        and since[0].role is Role.ASSISTANT
        and ending(since[0].text) == branch.reply
    )


def openings(transcript: Transcript) -> tuple[Opening, ...]:
    """Where the newest turn of a transcript begins: one place if that is known, else before its last user messages."""
    places: Iterable[int] = [transcript.opening] if transcript.opening else transcript.last_users(MAX_OPENINGS)
    return tuple([Opening(place, transcript.digests[place - 1]) for place in places if place])


def places_since(branch: Branch, transcript: Transcript, shared: int) -> list[int] | None:
    """The places of the messages that the branch's last request did not have; None where that is not known."""
    size = len(transcript.chain)
    if shared >= branch.count - 1:
        return list(range(branch.count, size))
    place = _place_from(branch, transcript, shared) if shared else None
    if place is None:
        return None
    if place < branch.count - 1:
        return list(range(place + 1, size))
    # It stands where it stood: what was in front of it has changed.
    return [i for i in range(shared, size) if i != place] if branch.turn == shared else None


def is_answered_alike(branch: Branch, transcript: Transcript, *, must_be_known: bool = False) -> bool:
    """Whether a transcript that continues a branch may be the same conversation, if it has rewritten the last message.

    Clients rewrite user messages but not tool results, and send the reply that they were given after it, as far as
    that reply is known; one that is not known proves nothing where it `must_be_known`. An assistant message that the
    client began is completed by the reply itself.
    """
    if has_node(transcript.digests, branch.count, branch.head):
        return True
    place = place_of_last(branch, transcript)
    place = branch.count - 1 if place is None else place
    rewritten = transcript.chain[place]
    if rewritten.role is not Role.USER:
        return rewritten.role is Role.ASSISTANT
    return _has_reply(branch, transcript, place) if branch.reply else not must_be_known


def common_length(branch: Branch, digests: Sequence[bytes]) -> int:
    """How many first messages a transcript that continues a branch shares with it."""
    count = branch.count
    if count <= len(digests) and digests[count - 1] == branch.head:
        return count
    if has_node(digests, count - 1, branch.before):
        return count - 1
    # The last place where the branch's newest turn may begin that the transcript has too.
    return next((opening.place for opening in reversed(branch.openings) if has_node(digests, *opening)), 0)


def has_node(digests: Sequence[bytes], count: int, node: bytes) -> bool:
    """Whether the chain has `node` after its first `count` messages."""
    return count <= len(digests) and digests[count - 1] == node
