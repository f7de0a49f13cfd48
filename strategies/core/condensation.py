"""Condensations: the records of complete heads.

An overlay (`pieces.Overlay`) is what we put into a view, in place of the client's messages or between them. It is
immutable. It is anchored in the chain by the digest of the last message before it, covers `covered` chain messages (0
for a patch or a memory block, which only insert), and lists the pieces that stand for them. A *condensation* is the
overlay that stands for a whole prefix. It is a complete head: its pieces include everything that an earlier
condensation said, so condensations are never stacked.

A kept piece holds only the index of its message. The bytes come from the current transcript; the anchor proves that it
is the same message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from strategies.core.cards import MemoryCard
from strategies.core.pieces import Keep, Overlay, Piece

if TYPE_CHECKING:
    from strategies.core.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Condensation:
    id: str
    digest: bytes
    """The chain digest of the last covered message."""
    covered: int
    depth: int
    """How many condensations this one contains, itself included."""
    pieces: tuple[Piece, ...]
    window: int
    """The window that it was made for, in tokens of the upstream."""
    strategy: str
    requirement: str
    trigger: str
    """What caused it: a value of `X-Condenser-Trigger`."""
    tokens_before: int
    tokens_after: int
    created_at: float
    """When it was made, in seconds since the epoch."""
    own_tokens: int = 0
    """Tokens of the model calls that made it."""
    parent: str | None = None
    """The id of the condensation that the view before it applied, if any."""
    standing: bool = True
    """Whether a forwarded view has applied it; False while it is only prepared."""
    reverted: bool = False
    """Whether a person took it back, so that no view applies it any more; `standing` is then False."""
    cards: tuple[MemoryCard, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Telemetry of the strategies as JSON. Never holds content of the conversation, except for what a judge said."""

    def head_in(self, transcript: Transcript) -> str:
        """The name of its head as a transcript shows it: by its id, and by what was pinned since it was made."""
        added = {index for index in transcript.pinned if index < self.covered}
        added -= {piece.index for piece in self.pieces if isinstance(piece, Keep)}
        pins = b"".join(transcript.digests[index] for index in sorted(added))
        return self.id + (blake2b(pins, digest_size=8).hexdigest() if pins else "")

    @property
    def dropped(self) -> frozenset[int]:
        """The chain indices of messages that its strategies left out of view and record on purpose."""
        told = (told for told in self.metadata.values() if isinstance(told, Mapping))
        return frozenset(index for each in told for index in (*each.get(JUDGED_IDS, ()), *each.get(DRIFT_IDS, ())))

    @property
    def overlay(self) -> Overlay:
        return Overlay(self.digest, self.covered, self.covered, self.pieces)


JUDGED_IDS, DRIFT_IDS = "dropped_judged_event_ids", "dropped_drift_event_ids"
"""Where the metadata of a stage lists the messages that it left out on purpose, before and after what was judged."""


def standing_condensations(condensations: Iterable[Condensation], digests: Sequence[bytes]) -> list[Condensation]:
    """The standing condensations that apply to a transcript with these chain digests, best first.

    The best one covers the longest prefix; of several, it has the greatest depth.
    """
    covering = [made for made in condensations if made.standing and 0 < made.covered <= len(digests)]
    standing = [made for made in covering if digests[made.covered - 1] == made.digest]
    return sorted(standing, key=lambda made: (made.covered, made.depth), reverse=True)
