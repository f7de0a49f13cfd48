"""Pieces: the parts that a view is made of. A piece keeps a message, or is a message of our own in its place."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum
from typing import TypeGuard


class PieceKind(Enum):
    REPLACEMENT = "replacement"
    LEAD_IN = "lead-in"
    TASK = "task"
    MASKED = "masked"
    SHORTENED = "shortened"
    PATCH = "patch"
    MEMORY = "memory"
    OPAQUE = "opaque"  # a vendor's own compaction, as it came
    CARRIED = "carried"  # what must not get lost under an opaque head; it stands before the newest question


@dataclass(frozen=True, slots=True)
class Keep:
    """The transcript's message at chain index `source`, unchanged."""

    source: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A message of our own as JSON text; `source` is the chain index of the one message that it stands for, if any."""

    raw: str
    kind: PieceKind
    source: int | None = None


Piece = Keep | Literal


def with_kept(pieces: Iterable[Piece], kept: Set[int], leading: int = 0) -> tuple[Piece, ...]:
    """The pieces, in order, with the messages in `kept` (chain indices) unchanged; missing ones are added.

    Those of the first `leading` messages go before everything else.
    """
    first = {index for index in kept if index < leading}
    rest = [piece for piece in pieces if piece.source not in first]
    whole = [Keep(piece.source) if piece.source is not None and piece.source in kept else piece for piece in rest]
    for index in sorted(kept - first - {piece.source for piece in whole}):
        later = (i for i, piece in enumerate(whole) if (piece.source or 0) > index)
        whole.insert(next(later, len(whole)), Keep(index))
    return (*map(Keep, sorted(first)), *whole)


def is_record(piece: Piece) -> TypeGuard[Literal]:
    """Whether a piece was written about the messages that it replaces: by us, or by the upstream."""
    is_ledger = is_carried(piece) and piece.source is None
    return isinstance(piece, Literal) and (is_ledger or piece.kind in (PieceKind.REPLACEMENT, PieceKind.OPAQUE))


def is_memory(piece: Piece) -> bool:
    return isinstance(piece, Literal) and piece.kind is PieceKind.MEMORY


def is_opaque(piece: Piece) -> bool:
    return isinstance(piece, Literal) and piece.kind is PieceKind.OPAQUE


def is_carried(piece: Piece) -> bool:
    return isinstance(piece, Literal) and piece.kind is PieceKind.CARRIED


@dataclass(frozen=True, slots=True)
class Overlay:
    """Pieces that go before chain message `at` and stand for the `covered` messages before it.

    `anchor` is the chain digest after message `at - 1`. The overlay applies only to transcripts with that digest there.
    """

    anchor: bytes
    at: int
    covered: int
    pieces: tuple[Piece, ...]
    under: int = 0
    """How many messages the head covered when this was placed. Behind one that covers fewer, it may repeat some."""
    asked: bytes = b""  # the digest of the message that it goes before, if it is about just that one

    @property
    def is_carried(self) -> bool:
        """Whether it is what an opaque head carries. That belongs to the message before it, and so may end a list."""
        return any(map(is_carried, self.pieces))

    @property
    def order(self) -> tuple[int, bool]:
        """Sorts overlays by their place, each of which has at most one of each kind: what is carried is last."""
        return self.at, self.is_carried

    def outlives(self, covered: int) -> bool:
        """Whether a head that covers so many messages has not taken it in.

        It belongs to the message before it, which the head may cover only if it was placed behind just this head.
        """
        return self.at > covered or self.at == covered == self.under > 0

    def stands_behind(self, covered: int) -> bool:
        """Whether a view shows it behind a head that covers so many messages."""
        return self.under <= covered and self.outlives(covered)


def blocks_in(patches: Iterable[Overlay]) -> tuple[Overlay, ...]:
    """The memory blocks, without what is carried."""
    return tuple(patch for patch in patches if all(map(is_memory, patch.pieces)))


def carried_in(patches: Iterable[Overlay]) -> tuple[Overlay, ...]:
    return tuple(patch for patch in patches if patch.is_carried)
