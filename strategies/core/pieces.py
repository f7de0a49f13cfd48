"""Pieces: what a view puts in the place of messages."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum


class PieceKind(Enum):
    REPLACEMENT = "replacement"
    LEAD_IN = "lead-in"
    TASK = "task"
    MASKED = "masked"
    SHORTENED = "shortened"
    PATCH = "patch"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Keep:
    """The transcript's message at chain index `index`, unchanged."""

    index: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A message of our own as JSON text; `origin` is the chain index of the one message that it stands for, if any."""

    raw: str
    kind: PieceKind
    origin: int | None = None


Piece = Keep | Literal


def source(piece: Piece) -> int | None:
    """The chain index of the message that a piece is or stands for."""
    return piece.index if isinstance(piece, Keep) else piece.origin


def with_kept(pieces: Iterable[Piece], kept: Set[int]) -> tuple[Piece, ...]:
    """The pieces with the messages of `kept`, which are chain indices, unchanged among them and in order."""
    whole = [Keep(index) if (index := source(each)) is not None and index in kept else each for each in pieces]
    for index in sorted(kept - {source(each) for each in whole}):
        later = (i for i, each in enumerate(whole) if (source(each) or 0) > index)
        whole.insert(next(later, len(whole)), Keep(index))
    return tuple(whole)


def is_memory(piece: Piece) -> bool:
    return isinstance(piece, Literal) and piece.kind is PieceKind.MEMORY


@dataclass(frozen=True, slots=True)
class Overlay:
    """Pieces that go before chain message `at` and stand for the `covered` messages before it.

    `anchor` is the chain digest after message `at - 1`; the overlay applies only to transcripts that have it there.
    """

    anchor: bytes
    at: int
    covered: int
    pieces: tuple[Piece, ...]
