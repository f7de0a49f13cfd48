"""The view: the message list that is sent on, and how it comes from the transcript.

A view is the transcript folded with its overlays in one pass (`fold`): first the head, then every chain
message that the head does not cover, with inserted pieces at their anchors. Systems are woven in only when the
list is written out (`messages`): those before the first chain message lead, those inside the covered span follow
the head, the others stand where the client put them.

Indices: *chain* indices count the transcript's chain messages; *item* indices count a view's items. `covered` chain
messages are stood for by the first `head` items; behind them the item i is the chain message
`covered + i - head`, unless something was inserted there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from strategies.core.condensation import Keep, Kind, Literal, Overlay, Piece
from strategies.core.rounds import Structure, structure
from strategies.core.transcript import Call, Counter, Message, Role, Transcript, literal


@dataclass(frozen=True, slots=True)
class Item:
    """A message of a view and the piece that it comes from."""

    message: Message
    piece: Piece

    @property
    def role(self) -> Role | None:
        """The role that it plays; None for what is nobody's turn: replacements, memory and patches."""
        if isinstance(self.piece, Literal) and self.piece.kind in (Kind.REPLACEMENT, Kind.MEMORY):
            return None
        return self.message.role

    @property
    def calls(self) -> tuple[Call, ...]:
        """Its tool calls."""
        return self.message.calls

    @property
    def answers(self) -> str:
        """The id of the call that it answers, or ""."""
        return self.message.answers

    @property
    def source(self) -> int | None:
        """The chain index of the message that it is or stands for."""
        return self.piece.index if isinstance(self.piece, Keep) else self.piece.origin

    @property
    def intact(self) -> bool:
        """Whether it is a message of the client's as it came in."""
        return isinstance(self.piece, Keep)

    @property
    def is_replacement(self) -> bool:
        """Whether it is the frame, summary and ledger that stand for condensed history."""
        return isinstance(self.piece, Literal) and self.piece.kind is Kind.REPLACEMENT


@dataclass(frozen=True)
class View:
    """`fixed` are the tokens that no plan can touch: tools, framing and systems."""

    transcript: Transcript
    items: tuple[Item, ...]
    head: int
    covered: int
    fixed: int
    counter: Counter

    @cached_property
    def tokens(self) -> int:
        """Tokens of the whole request that this view makes."""
        return self.fixed + sum(item.message.tokens for item in self.items)

    @cached_property
    def structure(self) -> Structure:
        """Turns, rounds and cuts in item indices."""
        return structure(self.items)

    @cached_property
    def task(self) -> int | None:
        """The item that is, or stands for, the first user message."""
        return self.item_of(self.transcript.task)

    @cached_property
    def last_user(self) -> int | None:
        """The item that is the last user message."""
        return self.item_of(self.transcript.last_user)

    @cached_property
    def replacement(self) -> int | None:
        """The item that is the replacement; a view holds at most one."""
        return next((i for i, item in enumerate(self.items) if item.is_replacement), None)

    @cached_property
    def limit(self) -> int:
        """The item before which every condensation ends: the last user message or the newest round.

        A transcript that ends with the user is open only before that message. Within a turn that goes on,
        all rounds but the newest may be condensed, and the user's message is kept among the pieces. Where nobody has
        answered yet, it is the last user message.
        """
        newest = self.structure.newest_round
        before_round = newest.start if newest else len(self.items)
        if self.ends_with_user:
            return min(before_round, self.last_user or 0)
        return before_round

    @property
    def ends_with_user(self) -> bool:
        """Whether the model is asked something new, rather than shown results."""
        return bool(self.items) and self.last_user == len(self.items) - 1

    @property
    def changed(self) -> bool:
        """Whether it differs from the transcript."""
        return len(self.items) != len(self.transcript.chain) or not all(item.intact for item in self.items)

    def item_of(self, index: int | None) -> int | None:
        """The item that is, or stands for, the chain message `index`."""
        return None if index is None else self._places.get(index)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {item.source: i for i, item in enumerate(self.items) if item.source is not None}

    def messages(self) -> Iterator[Message]:
        """The messages in the order in which they are sent, systems included."""
        waiting: dict[int, list[Message]] = defaultdict(list)
        for place, system in self.transcript.systems:
            waiting[place if place == 0 or place > self.covered else self.covered].append(system)
        yield from waiting.pop(0, ())
        for i, item in enumerate(self.items):
            if i == self.head:
                yield from waiting.pop(self.covered, ())
            yield item.message
            if i >= self.head and isinstance(item.piece, Keep):
                yield from waiting.pop(item.piece.index + 1, ())
        for place in sorted(waiting):
            yield from waiting[place]

    def to_json(self) -> str:
        """The message list as JSON text; messages of the client as they came in."""
        return "[" + ",".join(message.raw for message in self.messages()) + "]"


def fold(transcript: Transcript, overlays: Sequence[Overlay], fixed: int, counter: Counter) -> View:
    """The view of a transcript: the overlay that covers most is its head, the others insert."""
    head = max(overlays, key=lambda overlay: overlay.covered, default=None)
    if head is not None and head.covered == 0:
        head = None
    covered = head.covered if head else 0
    inserted: dict[int, list[Piece]] = defaultdict(list)
    for overlay in overlays:
        if overlay.covered == 0 and overlay.at >= covered:
            inserted[overlay.at].extend(overlay.pieces)
    items = list(_resolve(head.pieces if head else (), transcript, counter))
    length = len(items)
    for i in range(covered, len(transcript.chain)):
        items.extend(_resolve(inserted.get(i, ()), transcript, counter))
        items.append(Item(transcript.chain[i], Keep(i)))
    return View(transcript, tuple(items), length, covered, fixed + transcript.system_tokens, counter)


def _resolve(pieces: Iterable[Piece], transcript: Transcript, counter: Counter) -> Iterator[Item]:
    for piece in pieces:
        if isinstance(piece, Keep):
            yield Item(transcript.chain[piece.index], piece)
        else:
            yield Item(_message(piece, transcript, counter), piece)


def _message(piece: Literal, transcript: Transcript, counter: Counter) -> Message:
    body = json.loads(piece.raw)
    role = transcript.chain[piece.origin].role if piece.origin is not None else _role(body)
    return literal(body, counter, role, piece.raw)


def _role(body: Mapping[str, object]) -> Role:
    match body.get("role"):
        case "assistant":
            return Role.ASSISTANT
        case "tool":
            return Role.TOOL
    return Role.USER


def item_for(piece: Piece, transcript: Transcript, counter: Counter) -> Item:
    """The item that a piece makes in a view of this transcript."""
    return next(_resolve((piece,), transcript, counter))
