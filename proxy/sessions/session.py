"""A session: what is stored of a conversation between its requests, and how a request finds its branch.

A session has sticky settings, branches, and the condensations of all branches. A branch is identified by its head, the
chain digest of the last message that a client sent on it, and by the chain digest before that, since a client may
rewrite its last message. A transcript continues the branch whose head, or the node before it, lies on its chain; of
several such branches it continues the longest. It also continues a branch whose newest turn it repeats without the
messages in front of the question: some clients move files or context to the end of each request. A transcript that
diverges earlier is a fork: a new branch if the session has an explicit id, a new session if it is derived.

What a person asks of a session is stored as marks, which last and need no revision of the document. `pin:NUMBER:NODE`
pins the message at a chain digest, and `condense:NUMBER:BRANCH` wants a branch condensed. `unpin:NUMBER:NODE` and
`condensed:NUMBER:BRANCH` say that this is over; what is asked for again has a new number. So replicas that write at the
same time never undo each other's work, and earlier versions keep what they do not know.

Sessions are immutable values, and everything here is pure; the driver reads and writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from proxy.knowledge.anchor import Anchor
from proxy.sessions.branch import (
    MAX_OPENINGS,
    NO_HEAD,
    NO_MEMORY_BLOCK,
    Branch,
    Head,
    MemoryBlock,
    common_length,
    continues,
    has_node,
    openings,
    places_since,
)
from proxy.sessions.identity import CHAT, DERIVED
from strategies.core.cards import MemoryCard
from strategies.core.condensation import Condensation
from strategies.core.digest import ROOT
from strategies.core.messages import Role
from strategies.core.pieces import Literal, Overlay
from strategies.core.protocol import Verdict
from strategies.core.transcript import Transcript
from strategies.memory.merging import settled_cards

MAIN = "main"
MAX_BRANCHES = 64
MAX_VERDICTS = 16
MAX_PATCHES = 64
MAX_PATCH_CHARS = 512 * 1024
SEEN_STEP = 300.0  # seconds; messages first seen within one step count as seen together
SEEN_HORIZON = 24 * 3600.0  # seconds; older times of arrival are not told apart
NOTHING: Mapping[str, Any] = {}
PIN, CONDENSE = "pin", "condense"
_ENDS = {PIN: "unpin", CONDENSE: "condensed"}
_MARKS = {
    PIN: re.compile(r"pin:([0-9]{1,9}):((?:[0-9a-f]{2})+)"),
    CONDENSE: re.compile(r"condense:([0-9]{1,9}):([a-z0-9]+)"),
}

_LAST_USED = attrgetter("last_used")


EMPTY = f"0-{ROOT.hex()}"
"""The head of a history without messages."""


@dataclass(frozen=True, slots=True)
class Tip:
    """Where an appended history ends: its head, as headers show it, and the name of its newest block."""

    head: str = EMPTY
    block: str = ""


NO_TIP = Tip()


class FailedTry(NamedTuple):
    """A preparation that came to nothing."""

    applied: str
    """The id of the condensation in the view; "" if there was none."""
    tokens: int
    """Tokens of the view."""
    reason: str = ""
    """Why there is no record; "" where no model was asked and no judge wanted one."""
    judged: bool = False
    """Whether judges had said YES."""
    branch: str = ""
    at: float = 0.0
    """Seconds since the epoch."""


class Wish(NamedTuple):
    """A person's wish that a message be pinned, or that the next request of a branch be condensed."""

    number: int
    """Wishes of one kind count from 1; the one with the smaller number was made first."""
    what: str
    """The chain digest after the message, in hex, or the name of the branch."""
    is_live: bool = True
    """Whether the message was not unpinned, or no request has tried to condense the branch yet."""
    kind: str = PIN

    @property
    def node(self) -> bytes:
        """The chain digest after the message."""
        return bytes.fromhex(self.what)

    @property
    def id(self) -> str:
        """The id that operators see: the same for every pin of one message."""
        return f"p{self.what[:16]}"

    @property
    def mark(self) -> str:
        return f"{self.kind}:{self.number}:{self.what}"

    @property
    def mark_of_end(self) -> str:
        return f"{_ENDS[self.kind]}:{self.number}:{self.what}"


class Session(NamedTuple):
    """One session as it is stored."""

    id: str
    """The id that headers show."""
    source: str
    """Where the id came from: the name of a header or body member, or `derived`."""
    created_at: float
    """Seconds since the epoch."""
    parent: str | None = None
    """The stored name of the session that this one forked from."""
    settings: Mapping[str, Any] = NOTHING
    """Settings that stick to the session."""
    strategy: str = ""
    """The pipeline of the last turn, whoever chose it; "" where an earlier version wrote the session."""
    branches: tuple[Branch, ...] = ()
    """The branches that were used last, at most `MAX_BRANCHES`."""
    branches_opened: int = 0
    """How many branches were ever opened."""
    totals: Mapping[str, int] = NOTHING
    """Sums over all requests: counts of requests and of tokens."""
    saved_tokens: Mapping[str, int] = NOTHING
    """The tokens that each condensation left out of the requests it was applied to, by its id."""
    condensations: tuple[Condensation, ...] = ()
    """The condensations of all branches, prepared and standing; each is stored in a record of its own."""
    pins: tuple[Wish, ...] = ()
    """The messages that a person pinned, in that order, also those that were unpinned; each is stored as a mark."""
    wishes: tuple[Wish, ...] = ()
    """The branches that a person wants condensed, also those that were; each is stored as a mark."""
    tip: Tip = NO_TIP
    """The end of the history that append mode has stored."""
    verdicts: tuple[Verdict, ...] = ()
    """The newest verdicts of judges, oldest first."""
    judging: Mapping[str, Any] = NOTHING
    """The last state of judgement, for people to read."""
    economy: Mapping[str, Any] = NOTHING
    """Where condensing is cheapest: `trigger` in tokens, the share that it `saves`, the `mode`; for people to read."""
    failed_try: FailedTry | None = None
    """The last preparation, if it failed."""
    added_cards: tuple[MemoryCard, ...] = ()
    """Memory cards that a person wrote."""
    forgotten_ids: tuple[str, ...] = ()
    """Ids of the memory cards that a person does not want."""
    patches: tuple[Overlay, ...] = ()
    """Hidden rounds, the newest last."""
    inherited: int = 0
    """How many first messages are stored in the parent's blocks only; 0 once the fork has stored them itself."""
    forked_after: int = 0
    """How many first messages the session shares with its parent."""
    rewriting_refused: bool = False
    """Whether the upstream took a request only as it came, not as it was rewritten; nothing is rewritten any more."""
    dialect: str = CHAT
    """The name of the protocol that its messages are in; it is never replayed in another one."""
    revision: int = 0
    """How many times it was saved."""

    @property
    def is_derived(self) -> bool:
        """Whether requests find it by their chain rather than by an id."""
        return self.source == DERIVED

    def find_branch(self, transcript: Transcript) -> Branch | None:
        """The branch that a transcript continues; None where it opens a new one."""
        answered = self.source == DERIVED
        continued = [branch for branch in self.branches if continues(branch, transcript, answered=answered)]
        if len(continued) < 2:
            return continued[0] if continued else None
        return max(continued, key=lambda branch: (common_length(branch, transcript.digests), branch.last_used))

    def name_for(self, branch: Branch | None, *, has_tools: bool) -> str:
        """The name of the branch that a request continues, or of the one that it opens if that is None."""
        if branch is not None:
            return branch.name
        # A side call that came first gives the name up to the conversation.
        is_free = has_tools and any(branch.name == MAIN and branch.may_be_side for branch in self.branches)
        return MAIN if is_free else branch_name(self.branches_opened + 1)

    def unstored_in(self, transcript: Transcript, branch: Branch | None) -> tuple[range, range]:
        """Which messages of a transcript have no blocks in this session yet, as two ranges, each stored as one block.

        `branch` is the one that the transcript continues. The first range are the messages inherited from the parent
        that have to be stored now; the second one ends with the transcript.
        """
        end = len(transcript.chain)
        if branch is None:
            return range(0), range(0 if self.branches else self.inherited, end)
        shared = common_length(branch, transcript.digests)
        # Messages in front of the branch's last question may be gone, also some that were inherited.
        return range(min(self.inherited, shared)), range(shared, end)

    def with_turn(
        self,
        transcript: Transcript,
        old: Branch | None,
        now: float,
        shown: Head = NO_HEAD,
        block: MemoryBlock = NO_MEMORY_BLOCK,
        anchor: Anchor | None = None,
        reply: str = "",
        *,
        has_tools: bool = False,
    ) -> Session:
        """The session with the branch that the transcript continues moved to its end, or with a new one.

        `old` is that branch, None for a new one. `shown` is the view's head, `reply` how the reply to the transcript
        ends; `has_tools` says that the request offered tools. The moved branch is the last one, unless another was used
        later.
        """
        digests = transcript.digests
        opened = self.branches_opened + (old is None)
        name = self.name_for(old, has_tools=has_tools)
        seen = first_seen_after(old.seen if old else (), common_length(old, digests) if old else 0, len(digests), now)
        anchor = anchor or (old.anchor if old else None)
        before = digests[-2] if len(digests) > 1 else ROOT
        head, last = (digests[-1], before, len(digests)), transcript.chain[-1].digest
        alone = not has_tools and (old is None or (old.may_be_side and old.head == digests[-1]))
        applied, more = shown
        at, opens = _applied_at(old, shown, transcript) if applied else 0, openings(transcript)
        branch = Branch(name, *head, now, applied, seen, block, anchor, reply, last, opens, alone, at, more)
        if old is None:
            others = [replace(each, name=branch_name(opened)) if each.name == name else each for each in self.branches]
        else:
            others = [each for each in self.branches if each.name != name]
        kept = sorted([*others, branch], key=_LAST_USED)[-MAX_BRANCHES:]
        # A fork that goes on is a conversation of its own: from now on it stores all of its blocks.
        inherited = self.inherited if old is None else 0
        return self._replace(branches=tuple(kept), branches_opened=opened, inherited=inherited)

    def cards(self, condensations: Iterable[Condensation] | None = None) -> list[MemoryCard]:
        """The memory cards of condensations, by default of all of the session's, and those that a person wrote.

        Oldest first. A card that a later one contradicts is among them, marked as superseded.
        """
        sources = self.condensations if condensations is None else condensations
        recorded = [card for each in sorted(sources, key=lambda each: each.created_at) for card in each.cards]
        cards = sorted((*recorded, *self.added_cards), key=lambda card: card.created_at)
        return [card for card in settled_cards(tuple(cards)) if card.id not in self.forgotten_ids]

    def with_verdict(self, verdict: Verdict, judging: Mapping[str, Any]) -> Session:
        """The session with one more verdict and the state of judgement after it."""
        return self._replace(verdicts=(*self.verdicts, verdict)[-MAX_VERDICTS:], judging=judging)

    def has_more_for_fork(self, count: int) -> bool:
        """Whether a fork after `count` messages gains anything from it that it would not gain from its parent."""
        records = [each.covered for each in self.condensations] + [each.at for each in self.patches]
        return count > self.forked_after or any(covered <= count for covered in records)

    def with_patch(self, patch: Overlay | None, digests: Sequence[bytes], covered: int) -> Session:
        """The session with the hidden rounds of one request, if it had any; `digests` are the request's chain.

        They replace the hidden rounds of another reply to the same message. Hidden rounds within the first `covered`
        messages, which the view's head covers, are dropped; so are the oldest ones beyond the bounds.
        """
        if patch is None and not self.patches:
            return self
        kept = [each for each in self.patches if not (each.at <= covered and has_node(digests, each.at, each.anchor))]
        if patch is not None:
            kept = [*(each for each in kept if (each.anchor, each.at) != (patch.anchor, patch.at)), patch]
        texts = ((piece.raw for piece in each.pieces if isinstance(piece, Literal)) for each in reversed(kept))
        sizes = accumulate(sum(map(len, raws)) for raws in texts)
        fitting = sum(1 for size in sizes if size <= MAX_PATCH_CHARS)
        return self._replace(patches=tuple(kept[max(len(kept) - min(fitting, MAX_PATCHES), 0) :]))

    def saved_after(self, condensation: str, tokens: int) -> Mapping[str, int]:
        """The tokens saved, after one more request with this condensation in its view ("" for none)."""
        if not condensation:
            return self.saved_tokens
        return {**self.saved_tokens, condensation: self.saved_tokens.get(condensation, 0) + max(tokens, 0)}

    def totals_with(self, **more: int) -> dict[str, int]:
        totals = dict(self.totals)
        for name, count in more.items():
            totals[name] = totals.get(name, 0) + count
        return totals

    def with_totals(self, **more: int) -> Session:
        return self._replace(totals=self.totals_with(**more))


def newest_turn(session: Session, branch: Branch | None, transcript: Transcript, inherited: int = 0) -> int:
    """How many of its last messages are the newest turn of a transcript that continues a session, on this branch.

    The turn begins with the first user message that the last request did not have, or where it began at that request.
    0 where the transcript does not have the last message of that request. A fork shares its first `inherited` messages
    with the session.
    """
    digests = transcript.digests
    branch = branch or max(session.branches, key=lambda each: each.last_used, default=None)
    if branch is None:
        return 0
    shared = max(common_length(branch, digests), inherited)
    new = places_since(branch, transcript, shared)
    if new is None:
        return 0
    users = [i for i in new if transcript.chain[i].role is Role.USER]
    if users:
        # More of them are turns that the client had with another model, and not what belongs to one question.
        return len(digests) - users[0 if len(users) <= MAX_OPENINGS else -1]
    return len(digests) - branch.turn if branch.turn is not None and branch.turn <= shared else 0


def _applied_at(old: Branch | None, head: Head, transcript: Transcript) -> int:
    """`Branch.applied_at` after a request whose view had a head."""
    if not transcript.chain[-1].dialect.binds_reasoning:
        return 0
    return (old.applied_at if old is not None and (old.applied, old.shown) == head else 0) or len(transcript.chain)


def first_seen_after(
    seen: Sequence[tuple[int, float]], shared: int, count: int, now: float
) -> tuple[tuple[int, float], ...]:
    """`Branch.seen` after a request with `count` messages, of which the branch had the first `shared` before."""
    old: list[tuple[int, float]] = []
    recent: list[tuple[int, float]] = []
    for length, at in seen if shared else ():
        pair = min(length, shared), at
        if now - at > SEEN_HORIZON:
            old = [pair]
        else:
            recent.append(pair)
    if recent and now - recent[-1][1] < SEEN_STEP:
        _, now = recent.pop()
    return (*old, *recent, (count, now))


def branch_name(number: int) -> str:
    """`main`, then `b2`, `b3`, …"""
    return MAIN if number <= 1 else f"b{number}"


def with_depth(name: str, depth: int) -> str:
    """A branch's name with the number of condensations in its view: `main++`, `main+4`."""
    return name + ("+" * depth if depth <= 3 else f"+{depth}")


def wishes_in(marks: frozenset[str], kind: str) -> tuple[Wish, ...]:
    """All wishes of a kind among the marks of a session, also those that are over, in the order they were made."""
    found = (Wish(int(each[1]), each[2], kind=kind) for each in map(_MARKS[kind].fullmatch, marks) if each)
    return tuple(sorted(wish._replace(is_live=wish.mark_of_end not in marks) for wish in found))


def wish_for(what: str, kind: str, known: Sequence[Wish]) -> Wish:
    """The live wish for something among the `known` ones of its kind, else a new one."""
    number = 1 + max((each.number for each in known), default=0)
    return next((each for each in known if each.is_live and each.what == what), Wish(number, what, kind=kind))
