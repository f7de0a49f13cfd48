"""Forms: what an upstream takes of messages, and a list written so that it takes what we put into it.

Servers differ. Chat templates insist that user and assistant alternate, schemas refuse a name or an empty content of
the assistant's, some want every system message first. Only what is ours is written otherwise: what we insert, what we
rewrite, and the seams at which messages meet that were not neighbours in the transcript. Where two of one role meet at
such a seam they become one message, the client's among them, for nothing else is taken there. All else keeps its bytes,
and a list that a client has broken itself stays broken. Pure: one view and one form make one list, and a view that
grows at its end makes a list that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strategies.core.condensation import Keep, Kind, Literal, Piece
from strategies.core.transcript import RESULT_ROLES, Counter, Message, Role, literal

CALLING = "(tool call)"
"""The content of a message of ours that calls tools and says nothing, where an empty one is refused."""
BRIDGE: Mapping[str, object] = {"role": "assistant", "content": "Understood."}
"""What stands between a tool's result and a user message where we have made them meet."""
_OURS = (Kind.REPLACEMENT, Kind.MEMORY)


@dataclass(frozen=True, slots=True)
class Form:
    """What an upstream takes: whether roles must alternate, and whether the assistant may have a name, or no content,
    and a system message stand in the middle."""

    alternate_roles: bool = False
    assistant_name: bool = True
    empty_assistant: bool = True
    middle_system: bool = True

    @property
    def systems_lead(self) -> bool:
        """Whether the system messages of what was condensed go to the front: a list that alternates has no other place
        for them."""
        return self.alternate_roles or not self.middle_system


class Placed(NamedTuple):
    """A message of a list and the piece that it comes from; None for a system message."""

    message: Message
    piece: Piece | None


def shaped(placed: Iterable[Placed], form: Form, counter: Counter) -> Iterator[Message]:
    """The messages of a list as the form has them."""
    fitted = (each for one in placed if (each := _fitted(one, form, counter)) is not None)
    return _alternating(fitted, counter) if form.alternate_roles else (each.message for each in fitted)


def fitting(body: Mapping[str, object], form: Form) -> Mapping[str, object] | None:
    """A message of ours as the form has it; the same where it takes it as it is, None where it takes no such thing."""
    if body.get("role") != "assistant":
        return body
    if not form.assistant_name and "name" in body:
        body = {key: value for key, value in body.items() if key != "name"}
    if form.empty_assistant or body.get("content"):
        return body
    return {**body, "content": CALLING} if body.get("tool_calls") else None


def _fitted(placed: Placed, form: Form, counter: Counter) -> Placed | None:
    message, piece = placed
    if not isinstance(piece, Literal):
        return placed
    body = message.body
    if form.alternate_roles and piece.kind in _OURS:
        # As the user's they join the task before them, or the message that they are about.
        body = {"role": "user", "content": body.get("content")}
    fits = fitting(body, form)
    if fits is None or fits is message.body:
        return None if fits is None else placed
    return Placed(literal(fits, counter, message.role), piece)


# -- alternation ---------------------------------------------------------------------------------------------------


def _alternating(placed: Iterable[Placed], counter: Counter) -> Iterator[Message]:
    """The messages with those of one role made one at each seam; a system message is no neighbour of any."""
    written: Message | None = None
    before: Placed | None = None
    for each in placed:
        if before is None or written is None or not _is_seam(before, each):
            if written is not None:
                yield written
            written = each.message
        elif _side(written) == _side(each.message) != "tool" and not written.calls:
            written = _joined(written, each.message, counter)
        else:
            yield written
            if (_side(written), _side(each.message)) == ("tool", "user"):
                yield literal(BRIDGE, counter, Role.ASSISTANT)
            written = each.message
        before = each
    if written is not None:
        yield written


def _is_seam(before: Placed, after: Placed) -> bool:
    """Whether we have made two messages neighbours."""
    if before.piece is None or after.piece is None:
        return False
    first, second = before.piece, after.piece
    return not (isinstance(first, Keep) and isinstance(second, Keep) and second.index == first.index + 1)


def _side(message: Message) -> str:
    return "tool" if message.written in RESULT_ROLES else message.written


def _joined(first: Message, second: Message, counter: Counter) -> Message:
    """Two messages of one role as one; what both say besides their content is that of the second."""
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
