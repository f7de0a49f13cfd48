"""A session: what is stored of a conversation between its requests, and how a request finds its branch.

A session has sticky settings, branches, and the condensations of all branches. A branch is a line of history. Two chain
digests identify it: its head, which is that of the last message that a client sent on it, and the one before, because a
client may rewrite its last message. A transcript continues the branch whose head, or the node before it, lies on its
chain; of several such branches, it continues the longest. It also continues a branch whose newest turn it repeats
without the messages in front of the question: some clients move files or context to the end of each request. A
transcript that diverges earlier is a fork: a new branch if the session has an explicit id, a new session if it is
derived. The branch that a transcript continues also shows which messages are new, and so where its newest turn begins.

A client may compact a branch by itself. The marks of the answer are kept (`ClientCompaction`), and a transcript that
begins with that answer goes on with the branch, on a new chain: the branch is *restarted*. What it had before stays
stored, and the compaction remembers where that ends.

Pins are stored as marks, which are never removed and need no revision of the document. `pin:NUMBER:NODE` pins the
message at a chain digest, `unpin:NUMBER:NODE` ends that, and pinning it again takes a new number. So replicas that
write at the same time never undo each other's work.

Sessions are immutable values, and everything here is pure; the driver reads and writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from proxy.protocols.replies import ending
from proxy.servers.counting import Anchor
from strategies.core.cards import MemoryCard, distinct
from strategies.core.client_compaction import carries
from strategies.core.condensation import Condensation
from strategies.core.messages import ROOT, Message, Role, link
from strategies.core.pieces import Literal, Overlay
from strategies.core.protocol import Verdict
from strategies.core.reasoning import Bound
from strategies.core.transcript import Transcript

OWN_HEADER = "X-Condenser-Session"
MAX_SHOWN = 256
"""The maximum number of characters of an id that headers and logs show as it is."""
MAIN = "main"
DERIVED = "derived"
CHAT = "chat"
"""The dialect of what names none."""
MAX_VERDICTS = 16
MAX_PATCHES = 64
MAX_PATCH_CHARS = 512 * 1024
NOTHING: Mapping[str, Any] = {}
MAX_OPENINGS = 4
"""The maximum number of user messages that make one question: files, context, and the question itself."""
MAX_BRANCHES = 64
MAX_MODELS = 255
MAX_MODEL_NAME = 128  # characters
MAX_COMPACTIONS = 16
MAX_TITLE = 80  # characters
_TAG = re.compile(r"\s*<([A-Za-z][\w-]{0,63})>")
SEEN_STEP = 300.0  # seconds; messages first seen within one step count as seen together
SEEN_HORIZON = 24 * 3600.0  # seconds; older times of arrival are not told apart

_LAST_USED = attrgetter("last_used")
_MARK = re.compile(r"pin:([0-9]{1,9}):([0-9a-f]+)")

EMPTY = f"0-{ROOT.hex()}"
"""The head of a history without messages."""


class TurnStart(NamedTuple):
    """A place where the newest turn of a branch may begin: how many chain messages come before, and their digest."""

    place: int
    node: bytes


class Branch(NamedTuple):
    """A line of history. Its fields are stored in this order, and new ones come last."""

    name: str
    """`main`, `b2`, `b3`, …"""
    head: bytes
    """The chain digest of the last message that a client sent on it."""
    before: bytes
    length: int
    """How many chain messages lead up to the head."""
    last_used: float = 0.0
    """When a request last moved it, in seconds since the epoch."""
    applied: str = ""
    """The id of the condensation in its last view; "" for none."""
    seen: tuple[tuple[int, float], ...] = ()
    """Pairs of a chain length and the time by which the messages up to it had come, in order."""
    anchor: Anchor | None = None
    """The upstream's token count of the last view that has one."""
    reply: str = ""
    """How the reply to its head ends; "" if that is not known."""
    last: bytes = b""
    """The digest of its last message by itself."""
    openings: tuple[TurnStart, ...] = ()
    """Where its newest turn begins; the possible places, newest last, if that is not known."""
    may_be_side: bool = False
    """Whether it may be a side call, such as for a title: a request without tools that no other has continued."""
    bound: Bound = Bound()
    """What reasoning is bound to, by its last view."""

    @property
    def turn(self) -> int | None:
        """The chain index at which its newest turn begins; None if that is not known."""
        return self.openings[0].place if len(self.openings) == 1 else None

    def continues(self, transcript: Transcript, *, answered: bool) -> bool:
        """Whether a transcript continues its head, or the node before it with the last message rewritten.

        With `answered`, a rewritten last message counts only if something follows it; otherwise the transcript may be
        another conversation that began alike. If the last message has moved, something must follow it in any case.
        """
        shared = self.common_length(transcript.digests)
        if shared == self.length:
            return True
        place = self.place_of_last(transcript)
        if place is None:
            return False
        return len(transcript.chain) > place + 1 or (shared == self.length - 1 and not answered)

    def place_of_last(self, transcript: Transcript) -> int | None:
        """Where a transcript has its last message, perhaps rewritten; None if it does not continue from there."""
        shared = self.common_length(transcript.digests)
        if shared >= self.length - 1:
            return self.length - 1 if shared else None
        place = self.place_from(transcript, shared) if shared else None
        return None if place == self.length - 1 else place

    def place_from(self, transcript: Transcript, start: int) -> int | None:
        """The first place, from `start` (at least 1), of its last message or of one that its reply follows."""
        digests = transcript.digests
        places = range(start, min(len(digests), self.length))
        same = (place for place in places if link(digests[place - 1], self.last) == digests[place])
        answered = (place for place in places if self.has_reply(transcript, place))
        return next(same, next(answered, None))

    def has_reply(self, transcript: Transcript, place: int) -> bool:
        """Whether the user message at a place is followed by the reply to its last request, as far as known."""
        asked, *since = transcript.chain[place : place + 2]
        return bool(
            self.reply
            and asked.role is Role.USER
            and since
            and since[0].role is Role.ASSISTANT
            and ending(since[0].text) == self.reply
        )

    def is_answered_alike(self, transcript: Transcript, *, must_be_known: bool = False) -> bool:
        """Whether a transcript that continues it may be the same conversation, if it has rewritten the last message.

        Clients rewrite user messages but not tool results, and then send the reply that they were given. If that reply
        is not known, it is taken to be the same, unless it `must_be_known`. An assistant message that the client began
        is completed by the reply itself.
        """
        if self.is_restarted or has_node(transcript.digests, self.length, self.head):
            return True
        found = self.place_of_last(transcript)
        place = self.length - 1 if found is None else found
        rewritten = transcript.chain[place]
        if rewritten.role is not Role.USER:
            return rewritten.role is Role.ASSISTANT
        return self.has_reply(transcript, place) if self.reply else not must_be_known

    @property
    def is_restarted(self) -> bool:
        """Whether nothing of its new chain is stored yet, because its client has just compacted it."""
        return not self.length

    def common_length(self, digests: Sequence[bytes]) -> int:
        """How many first messages a transcript that continues it shares with it."""
        count = self.length
        if not count:
            return 0
        if count <= len(digests) and digests[count - 1] == self.head:
            return count
        if has_node(digests, count - 1, self.before):
            return count - 1
        # The last of the places where the branch's newest turn may begin that the transcript has too.
        return next((opening.place for opening in reversed(self.openings) if has_node(digests, *opening)), 0)


class ClientCompaction(NamedTuple):
    """A compaction that a client has made of a branch."""

    branch: str
    marks: tuple[str, ...] = ()
    """By what its answer is known (`strategies.core.client_compaction`); empty once the client has sent it."""
    head: bytes = b""
    """The chain digest at which the history ends that the answer stands for; b"" until the client has sent it."""


class Tip(NamedTuple):
    """Where an appended history ends: its head, as headers show it, and the name of its newest block."""

    head: str = EMPTY
    block: str = ""


class Pin(NamedTuple):
    """A person's wish that a message stay word for word."""

    number: int
    """Pins of a session count from 1; the one with the smaller number was made first."""
    digest: str
    """The chain digest after the message, in hex."""
    is_live: bool = True
    """Whether the message is still pinned."""

    @property
    def node(self) -> bytes:
        return bytes.fromhex(self.digest)

    @property
    def id(self) -> str:
        """The id that operators see: the same for every pin of one message."""
        return f"p{self.digest[:16]}"

    @property
    def mark(self) -> str:
        return f"pin:{self.number}:{self.digest}"

    @property
    def mark_of_end(self) -> str:
        return f"un{self.mark}"


class Session(NamedTuple):
    id: str
    source: str
    """Where the id came from: the name of a header or body member, or `derived`."""
    created_at: float
    """Seconds since the epoch."""
    title: str = ""
    """The first words of its user, by which people know it; "" in what an earlier version has stored."""
    parent: str | None = None
    """The stored name of the session that this one forked from."""
    settings: Mapping[str, Any] = NOTHING
    strategy: str = ""
    """The pipeline of the last turn, whoever chose it; "" before the first."""
    branches: tuple[Branch, ...] = ()
    """The branches that were used last, at most `MAX_BRANCHES`."""
    branches_opened: int = 0
    window: int | None = None
    """The window in tokens of the last request; None if it was unknown."""
    totals: Mapping[str, int] = NOTHING
    """Sums over all requests: counts of requests and of tokens."""
    condensations: tuple[Condensation, ...] = ()
    """The condensations of all branches, prepared and standing; each is stored in a record of its own."""
    pins: tuple[Pin, ...] = ()
    """The messages that a person pinned, oldest pin first, including those unpinned later; each is stored as a mark."""
    drops: frozenset[str] = frozenset()
    """The marks of what a person has dropped from the ledger (`proxy/conversations/drops.py`)."""
    tip: Tip = Tip()
    """The end of the history that append mode has stored."""
    verdicts: tuple[Verdict, ...] = ()
    """The newest verdicts of judges, oldest first."""
    judging: Mapping[str, Any] = NOTHING
    added_cards: tuple[MemoryCard, ...] = ()
    forgotten_ids: tuple[str, ...] = ()
    patches: tuple[Overlay, ...] = ()
    inherited: int = 0
    """How many first messages are stored in the parent's blocks only; 0 once the fork has stored them itself."""
    forked_after: int = 0
    """How many first messages the session shares with its parent."""
    traits: Mapping[str, Any] = NOTHING
    """What only some sessions have, by the names of its rows (`proxy/condensing/traits`)."""
    dialect: str = CHAT
    """The name of the protocol that its messages are in; it is never replayed in another one."""
    model: str = ""
    """The model of the last request."""
    models: tuple[str, ...] = ()
    """The models of all requests, in the order in which they came first, at most `MAX_MODELS`."""
    compactions: tuple[ClientCompaction, ...] = ()
    """The newest compactions that clients have made by themselves, oldest first, at most `MAX_COMPACTIONS`."""
    revision: int = 0

    def find_branch(self, transcript: Transcript) -> Branch | None:
        """The branch that a transcript continues, perhaps restarted; None if it opens a new one."""
        if (restarted := self._restarted_by(transcript)) is not None:
            return restarted
        answered = self.source == DERIVED
        continued = [branch for branch in self.branches if branch.continues(transcript, answered=answered)]
        if len(continued) < 2:
            return continued[0] if continued else None
        return max(continued, key=lambda branch: (branch.common_length(transcript.digests), branch.last_used))

    def _restarted_by(self, transcript: Transcript) -> Branch | None:
        """The branch that a transcript restarts, because it begins with the answer to a compaction.

        One that goes on from the branch's head restarts nothing: a later summary may repeat lines of the one before.
        """
        named = {branch.name: branch for branch in self.branches}
        for known in reversed(self.compactions):
            branch = named.get(known.branch) if known.marks else None
            if branch is None or has_node(transcript.digests, branch.length, branch.head):
                continue
            if carries(transcript, known.marks):
                return Branch(branch.name, b"", b"", 0)
        return None

    def with_compaction(self, branch: str, marks: Sequence[str]) -> Session:
        """The session in which a client has compacted a branch; the answer has these marks, if it can be known."""
        others = [known for known in self.compactions if not (known.branch == branch and known.marks)]
        new = [ClientCompaction(branch, tuple(marks))] if marks else []
        return self._replace(compactions=(*others, *new)[-MAX_COMPACTIONS:])

    def heads_of(self, branch: Branch) -> list[bytes]:
        """The chain digests at which the histories of a branch end: those before each compaction, and its own."""
        return [*(known.head for known in self.compactions if known.branch == branch.name and known.head), branch.head]

    def name_for(self, branch: Branch | None, *, has_tools: bool) -> str:
        """The name of the branch that a request continues, or of the one that it opens if that is None."""
        if branch is not None:
            return branch.name
        # A side call that came first gives the name up to the conversation.
        is_free = has_tools and any(branch.name == MAIN and branch.may_be_side for branch in self.branches)
        return MAIN if is_free else branch_name(self.branches_opened + 1)

    def branch_after(
        self, old: Branch | None, transcript: Transcript, now: float, *, has_tools: bool, **more: Any
    ) -> Branch:
        """The branch `old` at the end of a transcript, with `more` and what it knew; a blank one if that is None."""
        digests = transcript.digests
        shared = old.common_length(digests) if old else 0
        return (old or Branch("", b"", b"", 0))._replace(
            name=self.name_for(old, has_tools=has_tools),
            head=digests[-1],
            before=digests[-2] if len(digests) > 1 else ROOT,
            length=len(digests),
            last_used=now,
            seen=_seen_after(old.seen if old else (), shared, len(digests), now),
            last=transcript.chain[-1].digest,
            openings=openings(transcript),
            may_be_side=not has_tools and (old is None or (old.may_be_side and old.head == digests[-1])),
            **more,
        )

    def with_branch(self, old: Branch | None, moved: Branch, **more: Any) -> Session:
        """The session with `more` whose branch `old` has moved on, or which has opened another one if that is None."""
        opened, compactions = self.branches_opened + (old is None), self.compactions
        if old is not None and not old.length:  # restarted
            left = next((branch.head for branch in self.branches if branch.name == old.name), b"")
            compactions = tuple(
                ClientCompaction(old.name, head=left) if known.branch == old.name and known.marks else known
                for known in compactions
            )
        if old is not None:
            others = [other for other in self.branches if other.name != moved.name]
        else:
            renamed = branch_name(opened)
            others = [other._replace(name=renamed) if other.name == moved.name else other for other in self.branches]
        return self._replace(
            branches=tuple(sorted([*others, moved], key=_LAST_USED)[-MAX_BRANCHES:]),
            branches_opened=opened,
            compactions=compactions,
            # A fork that continues is a conversation of its own: from now on it stores all of its blocks.
            inherited=self.inherited if old is None else 0,
            **more,
        )

    def cards(self, condensations: Iterable[Condensation] | None = None) -> list[MemoryCard]:
        """The memory cards of condensations, by default of all in the session, and those that a person wrote.

        Oldest first; what says the same stands once.
        """
        sources = self.condensations if condensations is None else condensations
        recorded = [card for record in sorted(sources, key=lambda record: record.created_at) for card in record.cards]
        cards = sorted((*recorded, *self.added_cards), key=lambda card: card.created_at)
        return [card for card in distinct(cards) if card.id not in self.forgotten_ids]

    def with_verdict(self, verdict: Verdict, judging: Mapping[str, Any]) -> Session:
        return self._replace(verdicts=(*self.verdicts, verdict)[-MAX_VERDICTS:], judging=judging)

    def has_more_for_fork(self, count: int) -> bool:
        """Whether a fork after `count` messages gains anything from it that it would not gain from its parent."""
        records = [each.covered for each in self.condensations] + [each.at for each in self.patches]
        return count > self.forked_after or any(covered <= count for covered in records)

    def with_patch(self, patch: Overlay | None, digests: Sequence[bytes], covered: int) -> Session:
        """The session with the block or the hidden rounds of one request; `digests` are the request's chain.

        They replace those of another reply to the same message. What the view's head, which covers the first `covered`
        messages, has taken in is dropped; so is what exceeds the bounds: that of other chains first, then the oldest.
        """
        if patch is None and not self.patches:
            return self
        kept = [one for one in self.patches if not has_node(digests, one.at, one.anchor)]
        kept += [one for one in self.patches if one not in kept and one.outlives(covered)]
        if patch is not None:
            place = patch.anchor, patch.order, patch.asked
            kept = [*(other for other in kept if (other.anchor, other.order, other.asked) != place), patch]
        texts = ((piece.raw for piece in overlay.pieces if isinstance(piece, Literal)) for overlay in reversed(kept))
        sizes = accumulate(sum(map(len, raws)) for raws in texts)
        fitting = sum(1 for size in sizes if size <= MAX_PATCH_CHARS)
        return self._replace(patches=tuple(kept[max(len(kept) - min(fitting, MAX_PATCHES), 0) :]))

    def with_model(self, model: str) -> Session:
        if model == self.model:
            return self
        is_known = model in self.models or len(self.models) >= MAX_MODELS
        return self._replace(model=model, models=self.models if is_known else (*self.models, model))

    def with_totals(self, **more: int) -> Session:
        return self._replace(totals={**self.totals, **{name: self.totals.get(name, 0) + more[name] for name in more}})


def title_of(messages: Iterable[Message]) -> str:
    """The first words that a user wrote, behind what agents put before them in tags, such as files and reminders."""
    for message in messages:
        text, at = message.text if message.role is Role.USER else "", 0
        while (tag := _TAG.match(text, at)) and (end := text.find(f"</{tag[1]}>", tag.end())) >= 0:
            at = end + len(f"</{tag[1]}>")
        if said := " ".join(text[at : at + 4 * MAX_TITLE].split()):
            return said[:MAX_TITLE] + ("…" if len(said) > MAX_TITLE else "")
    return ""


def openings(transcript: Transcript) -> tuple[TurnStart, ...]:
    """Where the newest turn of a transcript begins: one place if that is known, else before its last user messages."""
    opening = transcript.opening
    places: Iterable[int] = [opening] if opening else transcript.last_users(MAX_OPENINGS)
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
    if branch is None or not branch.length:  # restarted
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


def has_node(digests: Sequence[bytes], count: int, node: bytes) -> bool:
    """Whether the chain has `node` after its first `count` messages."""
    return count <= len(digests) and digests[count - 1] == node


def branch_name(number: int) -> str:
    """`main`, then `b2`, `b3`, …"""
    return MAIN if number <= 1 else f"b{number}"


def session_key(session_id: str, dialect: str = CHAT) -> str:
    """The name of an explicit session in keys: a digest, so that ids of any length stay distinct."""
    key = b"" if dialect == CHAT else dialect.encode()
    return "e" + blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()


def printable_id(session_id: str) -> str:
    """An id as headers and logs show it: itself, or its digest if it is too long or not printable ASCII."""
    if len(session_id) <= MAX_SHOWN and session_id.isascii() and session_id.isprintable():
        return session_id
    return session_key(session_id)


def pins_in(marks: frozenset[str]) -> tuple[Pin, ...]:
    """All pins among the marks of a session, including those that are over, in the order they were made."""
    found = (Pin(int(match[1]), match[2]) for match in filter(None, map(_MARK.fullmatch, marks)))
    return tuple(sorted(pin._replace(is_live=pin.mark_of_end not in marks) for pin in found))


def pin_for(digest: str, known: Sequence[Pin]) -> Pin:
    """The live pin of a message among the `known` ones, else a new one."""
    number = 1 + max((pin.number for pin in known), default=0)
    return next((pin for pin in known if pin.is_live and pin.digest == digest), Pin(number, digest))
