"""Shaping: what message lists an upstream accepts, and how a view is written so that it is accepted.

Servers differ. Chat templates insist that user and assistant alternate, schemas refuse a name or an empty content in
an assistant message, some servers want every system message first. Only what we changed is adapted: messages that we
insert or rewrite, and *seams*, where messages meet that were not neighbours in the transcript. If two messages of the
same role meet at a seam, they are merged, even if one is the client's, because no alternating server accepts both.
Everything else keeps its bytes, and a list that the client itself has broken stays broken. The result depends only on
view and form, and a view that grows at its end gives a list that grows at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strategies.core.messages import Form, Message, Role, TokenCounter, literal
from strategies.core.pieces import Keep, Literal, Piece, PieceKind

BRIDGE = "Understood."
"""The assistant's message between a tool's result and a user message, if we have made them neighbours."""
_OURS = (PieceKind.REPLACEMENT, PieceKind.MEMORY)


class Placed(NamedTuple):
    """A message of a list and the piece that it comes from; None for a system message."""

    message: Message
    piece: Piece | None


def shape(placed: Iterable[Placed], form: Form, counter: TokenCounter) -> Iterator[Message]:
    """The messages of a list, adapted to the form."""
    adapted = (_adapt(original, form, counter) for original in placed)
    kept = filter(None, adapted)
    return _alternating(kept, counter) if form.alternate_roles else (entry.message for entry in kept)


def _adapt(placed: Placed, form: Form, counter: TokenCounter) -> Placed | None:
    message, piece = placed
    if not isinstance(piece, Literal):
        return placed
    written = message.body
    # As user messages they merge with the task before them, or with the message that they belong to.
    is_merged = form.alternate_roles and piece.kind in _OURS
    fits = message.dialect.fitted(message.dialect.as_user(written) if is_merged else written, form)
    if fits is None:
        return None
    return placed if fits is written else Placed(literal(fits, counter, message.role), piece)


def _alternating(placed: Iterable[Placed], counter: TokenCounter) -> Iterator[Message]:
    """The messages, merged at each seam where both have the same role. A system message is not part of any seam."""
    written: Message | None = None
    before: Piece | None = None
    for message, piece in placed:
        is_seam = before is not None and piece is not None and not _are_neighbours(before, piece)
        if written and is_seam and _side(written) == _side(message) != "tool" and not written.calls:
            merged = counter.dialect.merged(written.body, message.body)
            message = literal(merged, counter, message.role)  # noqa: PLW2901 - written in place of both
        elif written:
            yield written
            if is_seam and (_side(written), _side(message)) == ("tool", "user"):
                yield literal(counter.dialect.assistant(BRIDGE), counter, Role.ASSISTANT)
        written, before = message, piece
    if written:
        yield written


def _are_neighbours(first: Piece, second: Piece) -> bool:
    """Whether two messages are neighbours in the transcript."""
    return isinstance(first, Keep) and isinstance(second, Keep) and second.index == first.index + 1


def _side(message: Message) -> str:
    return "tool" if message.is_result else message.written_role
