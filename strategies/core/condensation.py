"""Overlays: what we put into a view in place of, or between, the client's messages.

An overlay is immutable. It is anchored in the chain by the digest of the last message it covers, covers
`covered` chain messages (0 for a patch or a memory block, which only insert), and lists the pieces that stand
for them. A *condensation* is the overlay that stands for a whole prefix; it is a complete head: all that an
earlier one said is in its pieces, so no two condensations are ever stacked.

Pieces that are kept are only named by their place: their bytes come from the transcript at hand, so a head
that applies proves by its anchor that they are what was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strategies.core.cards import MemoryCard


class Kind(Enum):
    """What a literal piece is."""

    REPLACEMENT = "replacement"
    LEAD_IN = "lead-in"
    TASK = "task"
    MASKED = "masked"
    SHORTENED = "shortened"
    PATCH = "patch"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Keep:
    """The message of the transcript at chain index `index`, as it is."""

    index: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A message of ours as JSON text; `origin` is the chain index of the message it stands for, if one."""

    raw: str
    kind: Kind
    origin: int | None = None


Piece = Keep | Literal


@dataclass(frozen=True, slots=True)
class Overlay:
    """Pieces that go before chain message `at`; they stand for the `covered` messages before it.

    `anchor` is the chain digest after message `at - 1`, and must hold in the transcript.
    """

    anchor: bytes
    at: int
    covered: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Condensation:
    """The record of one condensation: a complete head and how it came to be.

    `depth` counts the condensations in it. `window` is what it was made for. `own_tokens` are those of our
    model calls. `metadata` is JSON: telemetry of the strategies, never content of the conversation except
    for what a judge said. `created_at` is in seconds since the epoch.
    """

    id: str
    digest: bytes
    covered: int
    depth: int
    pieces: tuple[Piece, ...]
    window: int
    strategy: str
    requirement: str
    trigger: str
    tokens_before: int
    tokens_after: int
    created_at: float
    own_tokens: int = 0
    parent: str | None = None
    standing: bool = True
    cards: tuple[MemoryCard, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overlay(self) -> Overlay:
        """What it puts into a view."""
        return Overlay(self.digest, self.covered, self.covered, self.pieces)


def standing_in(condensations: Iterable[Condensation], digests: Sequence[bytes]) -> list[Condensation]:
    """Those whose covered prefix stands in a transcript with these chain digests, best first.

    Best is the longest covered prefix, then the greatest depth.
    """
    found = [each for each in condensations if each.standing and _stands(each, digests)]
    return sorted(found, key=lambda each: (each.covered, each.depth), reverse=True)


def _stands(condensation: Condensation, digests: Sequence[bytes]) -> bool:
    covered = condensation.covered
    return 0 < covered <= len(digests) and digests[covered - 1] == condensation.digest
