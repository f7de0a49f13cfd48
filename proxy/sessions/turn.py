"""Turns: where the newest one of a transcript begins, and what a request changes in its session.

The branch that a transcript continues shows which messages are new. If some were removed or moved, the places where the
branch's last turn may have begun show it. Everything here is pure; `keeping` reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from proxy.endpoints.replies import Usage
from proxy.knowledge.learned_windows import SizeRefused
from proxy.sessions.session import Branch, Session, Tip, TurnStart, branch_name
from strategies.core.messages import ROOT, Role
from strategies.core.transcript import Transcript

MAX_OPENINGS = 4
"""The maximum number of user messages that make one question: files, context, and the question itself."""
MAX_BRANCHES = 64
SEEN_STEP = 300.0  # seconds; messages first seen within one step count as seen together
SEEN_HORIZON = 24 * 3600.0  # seconds; older times of arrival are not told apart

_LAST_USED = attrgetter("last_used")


class SessionUpdate(NamedTuple):
    """What a request leaves in the store."""

    transcript: Transcript
    """The history that the client sent, or in append mode all of it."""
    after: Callable[[Session, Branch | None, float], Session]
    """The session after the request, by the session, the branch that it continues (None if it opens one), and the time.

    A function, because the session may be read again before it is written.
    """
    covered: int = 0
    """How many messages the view's head covers."""
    blocks: Mapping[str, bytes] = MappingProxyType({})
    """The block of an append, or of a reply that a later request may name, by its name."""
    tip: Tip | None = None
    """Where the history ends after an append; None outside of append mode."""
    tip_before: Tip = Tip()


def openings(transcript: Transcript) -> tuple[TurnStart, ...]:
    """Where the newest turn of a transcript begins: one place if that is known, else before its last user messages."""
    places: Iterable[int] = [transcript.opening] if transcript.opening else transcript.last_users(MAX_OPENINGS)
    return tuple([TurnStart(place, transcript.digests[place - 1]) for place in places if place])


def places_since(branch: Branch, transcript: Transcript, shared: int) -> list[int] | None:
    """The places of the messages that the branch's last request did not have; None if that is not known."""
    size = len(transcript.chain)
    if shared >= branch.length - 1:
        return list(range(branch.length, size))
    place = branch.place_from(transcript, shared) if shared else None
    if place is None:
        return None
    if place < branch.length - 1:
        return list(range(place + 1, size))
    # It has kept its place, and what was in front of it has changed.
    return [i for i in range(shared, size) if i != place] if branch.turn == shared else None


def newest_turn(session: Session, branch: Branch | None, transcript: Transcript, inherited: int = 0) -> int:
    """The length in messages of the newest turn of a transcript that continues a session on this branch.

    The turn begins with the first user message that the last request did not have; if there is none, where it began at
    that request. The length is 0 if the transcript does not have the last message of that request. A fork shares its
    first `inherited` messages with the session.
    """
    digests = transcript.digests
    branch = branch or max(session.branches, key=lambda known: known.last_used, default=None)
    if branch is None:
        return 0
    shared = max(branch.common_length(digests), inherited)
    new = places_since(branch, transcript, shared)
    if new is None:
        return 0
    users = [i for i in new if transcript.chain[i].role is Role.USER]
    if users:
        # More of them do not belong to one question: they are turns that the client had with another model.
        return len(digests) - users[0 if len(users) <= MAX_OPENINGS else -1]
    return len(digests) - branch.turn if branch.turn is not None and branch.turn <= shared else 0


def branch_after(session: Session, old: Branch | None, transcript: Transcript, now: float, *, tools: bool) -> Branch:
    """The branch `old` at the end of a transcript, with the facts of its last request; a blank one if that is None.

    `tools` tells whether the request offers any.
    """
    digests = transcript.digests
    shared = old.common_length(digests) if old else 0
    return (old or Branch("", b"", b"", 0))._replace(
        name=session.name_for(old, has_tools=tools),
        head=digests[-1],
        before=digests[-2] if len(digests) > 1 else ROOT,
        length=len(digests),
        last_used=now,
        seen=_seen_after(old.seen if old else (), shared, len(digests), now),
        last=transcript.chain[-1].digest,
        openings=openings(transcript),
        may_be_side=not tools and (old is None or (old.may_be_side and old.head == digests[-1])),
    )


def with_branch(session: Session, old: Branch | None, moved: Branch) -> Session:
    """The session whose branch `old` has moved on, or which has opened another one if that is None."""
    opened = session.branches_opened + (old is None)
    if old is not None:
        others = [other for other in session.branches if other.name != moved.name]
    else:
        renamed = branch_name(opened)
        others = [other._replace(name=renamed) if other.name == moved.name else other for other in session.branches]
    return session._replace(
        branches=tuple(sorted([*others, moved], key=_LAST_USED)[-MAX_BRANCHES:]),
        branches_opened=opened,
        # A fork that continues is a conversation of its own: from now on it stores all of its blocks.
        inherited=session.inherited if old is None else 0,
    )


def counts_in(usage: Usage | None) -> dict[str, int]:
    """What a usage adds to the totals of a session."""
    if usage is None:
        return {}
    return {"prompt_tokens": usage.prompt, "cached_tokens": usage.cached, "completion_tokens": usage.completion}


def size_after(stored: SizeRefused | None, known: SizeRefused | None, *, ends: bool) -> SizeRefused | None:
    """The size refused that bounds the session after a request: the newest one, unless the request has ended it.

    `known` bounded the request, or was learned from it; it `ends` if a longer view was accepted. The stored one may be
    another model's, or that of a request which was answered meanwhile.
    """
    if stored is None or stored == known:
        return None if ends else known
    is_newer = known is not None and not ends and known.until > stored.until
    return known if is_newer else stored


def _seen_after(
    seen: Sequence[tuple[int, float]], shared: int, count: int, now: float
) -> tuple[tuple[int, float], ...]:
    """`Branch.seen` after a request with `count` messages, of which the branch had the first `shared` before."""
    known = [(min(length, shared), at) for length, at in seen] if shared else []
    old = [pair for pair in known if now - pair[1] > SEEN_HORIZON][-1:]
    recent = [pair for pair in known if now - pair[1] <= SEEN_HORIZON]
    if recent and now - recent[-1][1] < SEEN_STEP:
        _, now = recent.pop()
    return (*old, *recent, (count, now))


def unstored_in(session: Session, transcript: Transcript, branch: Branch | None) -> tuple[range, range]:
    """Which messages of a transcript have no blocks in a session yet, as two ranges, each stored as one block.

    `branch` is the one that the transcript continues. The first range is the messages inherited from the parent that
    have to be stored now; the second ends with the transcript.
    """
    end = len(transcript.chain)
    if branch is None:
        return range(0), range(0 if session.branches else session.inherited, end)
    shared = branch.common_length(transcript.digests)
    # Messages in front of the branch's last question may be gone, including inherited ones.
    return range(min(session.inherited, shared)), range(shared, end)


def nodes_of(update: SessionUpdate) -> tuple[str, ...]:
    """The digests that index a derived session: its last two, those of its openings, and the end of its view's head."""
    digests = update.transcript.digests
    condensed = digests[update.covered - 1 : update.covered]
    nodes = (*(opening.node for opening in openings(update.transcript)), *condensed, *digests[-2:])
    return tuple(dict.fromkeys(node.hex() for node in nodes))
