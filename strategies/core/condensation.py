"""Condensations: the records of complete heads, and the choice of the one that a view applies.

An overlay (`Overlay`) is what we put into a view, in place of the client's messages or between them. It is
immutable. It is anchored in the chain by the digest of the last message before it, covers `covered` chain messages (0
for a patch or a memory block, which only insert), and lists the pieces that stand for them. A *condensation* is the
overlay that stands for a whole prefix. It is a complete head: its pieces include everything that an earlier
condensation said, so condensations are never stacked.

A kept piece holds only the index of its message. The bytes come from the current transcript; the anchor proves that it
is the same message.

`replay` chooses the condensation that the view of a transcript applies; docs/internals/sessions.md has the rule. After
a rewind, an old head may cover a protected message (the newest round, or the last user message). Such a head is
skipped, and so is one that pinned messages make larger than the transcript.

A prepared condensation was made in the background for an earlier transcript of this chain, and no forwarded view has
applied it yet. It must shrink the view by a certain share. One that a judge asked for must only make the view smaller:
its share was checked when it was made, and newer messages must not make us throw away a paid summary.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from strategies.core.budget import Budget
from strategies.core.cards import MemoryCard
from strategies.core.errors import InvalidPlan
from strategies.core.ledger import without
from strategies.core.messages import Dialect, TokenCounter, dump
from strategies.core.parsing import loads
from strategies.core.pieces import Keep, Overlay, Piece, is_opaque, is_record
from strategies.core.plan import check
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold

if TYPE_CHECKING:
    from strategies.core.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Condensation:
    id: str
    digest: bytes  # the chain digest of the last covered message
    covered: int
    depth: int  # how many condensations this one contains, itself included
    pieces: tuple[Piece, ...]
    window: int  # the window that it was made for, in tokens of the upstream
    strategy: str
    requirement: str
    trigger: str  # what caused it: a value of `X-Condenser-Trigger`
    tokens_before: int
    tokens_after: int
    created_at: float  # when it was made, in seconds since the epoch
    own_tokens: int = 0  # tokens of the model calls that made it
    parent: str | None = None  # the id of the condensation that the view before it applied, if any
    standing: bool = True  # whether a forwarded view has applied it; False while it is only prepared
    reverted: bool = False
    """Whether a person took it back, so that no view applies it any more; `standing` is then False."""
    restored: int = 0  # how often a person took that back
    cards: tuple[MemoryCard, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Telemetry of the strategies as JSON. Never holds content of the conversation, except for what a judge said."""

    recorded: tuple[Piece, ...] = ()
    """Its pieces as they were recorded, if a person has dropped something from its ledger; else empty."""

    def head_in(self, transcript: Transcript) -> str:
        """The name of its head as a transcript shows it: by its id, and by what was pinned or dropped since."""
        added = {index for index in transcript.pinned if index < self.covered}
        added -= {piece.source for piece in self.pieces if isinstance(piece, Keep)}
        changes = b"".join(transcript.digests[index] for index in sorted(added))
        changes += repr(self.pieces).encode() if self.recorded else b""
        return self.id + (blake2b(changes, digest_size=8).hexdigest() if changes else "")

    def without(self, gone: Container[str], dialect: Dialect) -> Condensation:
        """The same whose ledger lacks the lines and names with these ids."""
        pieces = tuple(_piece_without(piece, gone, dialect) for piece in self.pieces)
        return self if pieces == self.pieces else replace(self, pieces=pieces, recorded=self.recorded or self.pieces)

    @property
    def stands_for(self) -> int:
        """How many messages its record stands for: all that it covers, except those with a piece of their own."""
        return self.covered - sum(piece.source is not None for piece in self.pieces)

    @property
    def is_opaque(self) -> bool:
        """Whether its head is a vendor's own compaction, which only its maker can read."""
        return any(map(is_opaque, self.pieces[:1]))

    @property
    def maker(self) -> str:
        """Who can read its opaque head; "" if it has none."""
        return self.told("maker") if self.is_opaque else ""

    def is_readable_by(self, maker: str) -> bool:
        return not self.is_opaque or self.maker == maker

    def told(self, name: str) -> str:
        """What the first stage that says something by this name has said; "" if none has."""
        stages = (stage for stage in self.metadata.values() if isinstance(stage, Mapping))
        return next((str(stage[name]) for stage in stages if stage.get(name)), "")

    @property
    def dropped(self) -> frozenset[int]:
        """The chain indices of messages that its strategies left out of view and record on purpose."""
        stages = (stage for stage in self.metadata.values() if isinstance(stage, Mapping))
        return frozenset(index for each in stages for index in (*each.get(JUDGED_IDS, ()), *each.get(DRIFT_IDS, ())))

    @property
    def overlay(self) -> Overlay:
        return Overlay(self.digest, self.covered, self.covered, self.pieces)


def _piece_without(piece: Piece, gone: Container[str], dialect: Dialect) -> Piece:
    if not is_record(piece):
        return piece
    body = loads(piece.raw)
    text = without(said := dialect.text(body), gone)
    return piece if text == said else replace(piece, raw=dump(dialect.with_texts(body, [text])))


JUDGED_IDS, DRIFT_IDS = "dropped_judged_event_ids", "dropped_drift_event_ids"
"""Where the metadata of a stage lists the messages that it left out on purpose, before and after what was judged."""


def standing_condensations(condensations: Iterable[Condensation], digests: Sequence[bytes]) -> list[Condensation]:
    """The standing condensations that apply to a transcript with these chain digests, best first.

    The best one covers the longest prefix; of several, it has the greatest depth.
    """
    covering = [each for each in condensations if each.standing and 0 < each.covered <= len(digests)]
    standing = [each for each in covering if digests[each.covered - 1] == each.digest]
    return sorted(standing, key=lambda each: (each.covered, each.depth), reverse=True)


# -- replay --------------------------------------------------------------------------------------------------------


class Replayed(NamedTuple):
    """A view and the condensation that is its head, if any."""

    view: View
    applied: Condensation | None

    @property
    def applied_id(self) -> str:
        return self.applied.id if self.applied else ""


def replay(
    transcript: Transcript,
    condensations: Iterable[Condensation],
    fixed: int,
    counter: TokenCounter,
    budget: Budget | None,
    last: str | None = None,
) -> Replayed:
    """The view of a transcript; `fixed` are the tokens of tools and framing.

    `last` is the id of the condensation in the branch's last view: "" if there was none, None if the branch is unknown.
    """
    candidates, again = list(standing_condensations(condensations, transcript.digests)), None
    if last is not None:
        same = [each for each in candidates if each.id == last]
        views = _views(transcript, same, fixed, counter)
        again = next((replayed for replayed in views if replayed.applied is not None or not last), None)
    if again is not None and candidates and candidates[0].restored and candidates[0] is not again.applied:
        again = None  # a person wants the best one back, which the branch has left for a longer view
    if budget is None:
        return again or next(_views(transcript, candidates, fixed, counter))
    if again is not None and again.view.tokens < budget.trigger and _suits_window(again, budget):
        return again
    views = _views(transcript, candidates, fixed, counter)
    best = next(views)
    if _suits_window(best, budget):
        return best
    fitting = [replayed for replayed in (best, *views) if replayed.view.tokens < budget.trigger]
    return max(fitting, key=lambda replayed: replayed.view.tokens, default=best)


def _suits_window(replayed: Replayed, budget: Budget) -> bool:
    """Whether the condensation was made for this window or a larger one. The transcript itself suits any window."""
    return replayed.applied is None or replayed.applied.window >= budget.upstream_window


def _views(
    transcript: Transcript, condensations: Iterable[Condensation], fixed: int, counter: TokenCounter
) -> Iterator[Replayed]:
    """Yields the possible views, best first; the last one is the transcript itself, with nothing applied."""
    # Pinned messages may make a view larger than its transcript. A view that binds reasoning is used even then.
    may_outgrow = transcript.pinned and not counter.dialect.binds_reasoning
    for condensation in standing_condensations(condensations, transcript.digests):
        view = fold(transcript, (condensation.overlay,), fixed, counter)
        if shows_protected_messages(view) and not (may_outgrow and view.tokens > fixed + transcript.tokens):
            yield Replayed(view, condensation)
    yield Replayed(fold(transcript, (), fixed, counter), None)


def shows_protected_messages(view: View) -> bool:
    """Whether a view passes `check`, so that the newest round and the last user message are in it."""
    try:
        check(view, may_cut_newest_results=True)
    except InvalidPlan:
        return False
    return True


def saved_by(condensation: Condensation | None, transcript: Transcript, counter: TokenCounter) -> int:
    """The tokens that a condensation saves, memory apart; 0 without one.

    They stay the same as long as it stands: it is compared only with the messages that it covers, as they came.
    """
    if condensation is None:
        return 0
    view = fold(transcript.having(patches=(), bound_until=0), (condensation.overlay,), 0, counter)
    covered = sum(message.tokens for message in transcript.chain[: view.covered_count])
    return max(covered - sum(item.message.tokens for item in view.front[: view.head_size]), 0)


def is_held_back(condensations: Iterable[Condensation], digests: Sequence[bytes], applied: Condensation | None) -> bool:
    """Whether a person took back a condensation of this chain that reaches further than `applied`.

    If so, nothing is condensed again before it must be, because the view would lose at once what was just brought back.
    """
    reverted = [replace(each, standing=True) for each in condensations if each.reverted]
    return bool(reverted and _beyond(reverted, digests, applied))


JUDGED = "judge"


def prepared_in(
    condensations: Iterable[Condensation], digests: Sequence[bytes], applied: Condensation | None
) -> list[Condensation]:
    """The prepared condensations that apply to this chain and reach further than `applied`, best first."""
    prepared = [replace(each, standing=True) for each in condensations if not (each.standing or each.reverted)]
    return _beyond(prepared, digests, applied)


def _beyond(
    condensations: Iterable[Condensation], digests: Sequence[bytes], applied: Condensation | None
) -> list[Condensation]:
    reached = (applied.covered, applied.depth) if applied else (0, 0)
    return [each for each in standing_condensations(condensations, digests) if (each.covered, each.depth) > reached]


def best_prepared(
    view: View,
    applied: Condensation | None,
    condensations: Iterable[Condensation],
    budget: Budget,
    *,
    judged_only: bool = False,
    least_shrink: float = 0.0,
) -> Replayed | None:
    """The best prepared condensation for `view`, and the view with it; None if there is none.

    `applied` is the condensation in `view`. With `judged_only`, only condensations that a judge asked for are
    considered. All others must shrink the view by the share `least_shrink`.
    """
    overhead = view.fixed_tokens - view.transcript.system_tokens
    for condensation in prepared_in(condensations, view.transcript.digests, applied):
        is_judged = condensation.trigger == JUDGED
        if condensation.window < budget.upstream_window or (judged_only and not is_judged):
            continue
        after = fold(view.transcript, (condensation.overlay,), overhead, view.counter)
        saved, share = view.tokens - after.tokens, 0.0 if is_judged else least_shrink
        if saved > 0 and saved >= share * view.tokens and shows_protected_messages(after):
            return Replayed(after, condensation)
    return None
