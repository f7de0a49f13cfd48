"""Shaping: writes a view in the form that a server accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from strategies.core.form import Form
from strategies.core.messages import RESULT_ROLES, Message, Role, TokenCounter, literal
from strategies.core.pieces import Keep, Literal, Piece, PieceKind

CALLING = "(tool call)"
"""The content of a message of our own that only calls tools, where an empty content is refused."""
BRIDGE: Mapping[str, object] = {"role": "assistant", "content": "Understood."}
"""The message between a tool's result and a user message, where we have made them neighbours."""
_OURS = (PieceKind.REPLACEMENT, PieceKind.MEMORY)


class Placed(NamedTuple):
    """A message of a list and the piece that it comes from; None for a system message."""

    message: Message
    piece: Piece | None


def shape(placed: Iterable[Placed], form: Form, counter: TokenCounter) -> Iterator[Message]:
    """The messages of a list, adapted to the form."""
    fitted = (each for one in placed if (each := _adapt(one, form, counter)) is not None)
    return _alternating(fitted, counter) if form.alternate_roles else (each.message for each in fitted)


def adapt_message(body: Mapping[str, object], form: Form) -> Mapping[str, object] | None:
    """A message of our own adapted to the form: itself if it is accepted as is, None if it must be left out."""
    if body.get("role") != "assistant":
        return body
    if not form.assistant_name and "name" in body:
        body = {key: value for key, value in body.items() if key != "name"}
    if form.empty_assistant or body.get("content"):
        return body
    return {**body, "content": CALLING} if body.get("tool_calls") else None


def _adapt(placed: Placed, form: Form, counter: TokenCounter) -> Placed | None:
    message, piece = placed
    if not isinstance(piece, Literal):
        return placed
    body = message.body
    if form.alternate_roles and piece.kind in _OURS:
        # As user messages they merge with the task before them, or with the message that they belong to.
        body = {"role": "user", "content": body.get("content")}
    fits = adapt_message(body, form)
    if fits is None or fits is message.body:
        return None if fits is None else placed
    return Placed(literal(fits, counter, message.role), piece)


def _alternating(placed: Iterable[Placed], counter: TokenCounter) -> Iterator[Message]:
    """The messages, merged at each seam where both have one role. A system message is not part of any seam."""
    written: Message | None = None
    before: Placed | None = None
    for each in placed:
        if before is None or written is None or not _is_seam(before, each):
            if written is not None:
                yield written
            written = each.message
        elif _side(written) == _side(each.message) != "tool" and not written.calls:
            written = _merge(written, each.message, counter)
        else:
            yield written
            if (_side(written), _side(each.message)) == ("tool", "user"):
                yield literal(BRIDGE, counter, Role.ASSISTANT)
            written = each.message
        before = each
    if written is not None:
        yield written


def _is_seam(before: Placed, after: Placed) -> bool:
    """Whether two neighbours were not neighbours in the transcript."""
    if before.piece is None or after.piece is None:
        return False
    first, second = before.piece, after.piece
    return not (isinstance(first, Keep) and isinstance(second, Keep) and second.index == first.index + 1)


def _side(message: Message) -> str:
    return "tool" if message.role_member in RESULT_ROLES else message.role_member


def _merge(first: Message, second: Message, counter: TokenCounter) -> Message:
    """Two messages of one role as one. Of members other than the content, the second message's win."""
    one, other = first.body, second.body
    return literal({**one, **other, "content": _content(one, other)}, counter, second.role)


def _content(one: Mapping[str, object], other: Mapping[str, object]) -> object:
    """Both contents as one text, or as parts where either has parts."""
    contents = [each for each in (one.get("content"), other.get("content")) if each]
    texts = [each for each in contents if isinstance(each, str)]
    if len(texts) == len(contents):
        return "\n\n".join(texts) if texts else other.get("content")
    return [part for each in contents for part in _parts(each)]


def _parts(content: object) -> Sequence[object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else [content]
