"""The view: the message list that is sent on, and how it comes from the transcript.

`fold` makes a view from the transcript and its overlays in one pass: first the items of the head, then every chain
message that the head does not cover, with inserted pieces at their anchors. System messages are added only when the
list is written out (`View.messages`): those before the first chain message come first, those inside the covered span
follow the head, and all others are where the client put them.

There are two kinds of index. A *chain* index counts the transcript's chain messages, an *item* index counts a view's
items:

    items   0 ....... head_size ....................... len(front) ................. last_cut ......... size
            the head: | chain messages from covered_count  | the chain's own messages | no condensation
            pieces    | on, with inserted pieces           | from own_from on         | may reach in here
    chain   0 ....... covered_count ................... own_from .......................... len(chain)

`shape` writes the list in the form that the upstream accepts. Servers differ. Chat templates insist that user and
assistant alternate, schemas refuse a name or an empty content in an assistant message, some servers want every system
message first. Only what we changed is adapted: messages that we insert or rewrite, and *seams*, where messages meet
that were not neighbours in the transcript. If two messages of the same role meet at a seam, they are merged, even if
one is the client's, because no alternating server accepts both. Everything else keeps its bytes, and a list that the
client itself has broken stays broken. The result depends only on view and form, and a view that grows at its end gives
a list that grows at its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from strategies.core.messages import Form, Message, Role, TokenCounter, ToolCall, dump, literal
from strategies.core.parsing import loads
from strategies.core.pieces import (
    Keep,
    Literal,
    Overlay,
    Piece,
    PieceKind,
    carried_in,
    is_carried,
    is_opaque,
    with_kept,
)
from strategies.core.rounds import Structure, structure
from strategies.core.transcript import Transcript

BRIDGE = "Understood."
"""The assistant's message between a tool's result and a user message, if we have made them neighbours."""
_OURS = (PieceKind.REPLACEMENT, PieceKind.MEMORY)


# -- the form of a list --------------------------------------------------------------------------------------------


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
    return isinstance(first, Keep) and isinstance(second, Keep) and second.source == first.source + 1


def _side(message: Message) -> str:
    return "tool" if message.is_result else message.written_role


_WITHOUT_ROLE = (*_OURS, PieceKind.LEAD_IN, PieceKind.OPAQUE, PieceKind.CARRIED)


# -- the view ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    message: Message
    piece: Piece

    @property
    def role(self) -> Role | None:
        """The role of the message in the conversation; None for what stands for others, or repeats them elsewhere."""
        return None if isinstance(self.piece, Literal) and self.piece.kind in _WITHOUT_ROLE else self.message.role

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.message.calls

    @property
    def answers(self) -> tuple[str, ...]:
        return self.message.answers

    @property
    def opens(self) -> tuple[str, ...]:
        return self.message.opens

    @property
    def closes(self) -> tuple[str, ...]:
        return self.message.closes

    @property
    def continues_reply(self) -> bool:
        return self.message.continues_reply

    @property
    def source(self) -> int | None:
        """The chain index of the message that this item is or stands for."""
        return self.piece.source

    @property
    def intact(self) -> bool:
        """Whether the item is one of the client's messages, unchanged."""
        return isinstance(self.piece, Keep)

    @property
    def is_replacement(self) -> bool:
        return isinstance(self.piece, Literal) and self.piece.kind is PieceKind.REPLACEMENT


@dataclass(frozen=True)
class View:
    """A transcript and the items that are sent on in its place.

    The items are `front`, followed by the transcript's own messages from chain index `own_from` on. The latter are
    unchanged, so they become `Item`s only when `items` is read: a view that is only replayed and sent makes none.
    """

    transcript: Transcript
    front: tuple[Item, ...]
    """The first items; all items after them are messages of the transcript, unchanged and without a gap."""
    head_size: int
    covered_count: int
    fixed_tokens: int  # tokens that no plan can change: tools, framing and system messages
    counter: TokenCounter
    own_from: int
    """The chain index from which on the transcript's own messages follow `front`; the chain's length if none do."""

    @cached_property
    def items(self) -> tuple[Item, ...]:
        kept = (Item(message, Keep(i)) for i, message in enumerate(self._own, self.own_from))
        return (*self.front, *kept)

    @property
    def size(self) -> int:
        return len(self.front) + len(self.transcript.chain) - self.own_from

    def item(self, place: int) -> Item:
        if place < len(self.front):
            return self.front[place]
        index = self.own_from + place - len(self.front)
        return Item(self.transcript.chain[index], Keep(index))

    def messages_before(self, place: int) -> int:
        """How many chain messages come before the item at `place`, shown or covered."""
        sources = (item.source for item in self.items[place:])
        return next((source for source in sources if source is not None), len(self.transcript.chain))

    @property
    def end_of_head(self) -> Message | None:
        """The last message of the head that the client did not write; None if there is none."""
        written = (item.message for item in reversed(self.front[: self.head_size]) if not item.intact)
        return next(written, None)

    @property
    def drops_reasoning(self) -> bool:
        """Whether a kept message is sent without its reasoning."""
        return any(item.intact and not self._is_as_sent(item) for item in self.front)

    @cached_property
    def item_messages(self) -> tuple[Message, ...]:
        return (*[item.message for item in self.front], *self._own)

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages of `front` and the next ones, up to the first that is not a tool result.

        All later messages follow each other as in the transcript, so only these can have lost a call or a result.
        """
        chain = self.transcript.chain
        end = next((i for i in range(self.own_from, len(chain)) if not chain[i].is_result), len(chain))
        return (*[item.message for item in self.front], *chain[self.own_from : end + 1])

    @property
    def _form(self) -> Form | None:
        """The form that the upstream requires; None if nothing has to be adapted, as in an unchanged view."""
        return None if self.own_from == 0 and not self.front else self.transcript.form

    @property
    def _own(self) -> tuple[Message, ...]:
        return self.transcript.chain[self.own_from :]

    @property
    def _own_tokens(self) -> int:
        """Tokens of the messages after the front: summed directly if they are few, else subtracted from the total."""
        transcript, start = self.transcript, self.own_from
        if start > len(transcript.chain) // 2:
            return sum([message.tokens for message in self._own])
        before = sum([message.tokens for message in transcript.chain[:start]])
        return transcript.tokens - transcript.system_tokens - before

    @cached_property
    def tokens(self) -> int:
        """Tokens of the whole request with this view, tools and framing included."""
        if not self.front and self.own_from == 0:
            return self.fixed_tokens - self.transcript.system_tokens + self.transcript.tokens
        if self._form is None and not self._joins_ours:
            return self.fixed_tokens + sum([item.message.tokens for item in self.front]) + self._own_tokens
        return self.fixed_tokens + sum([sent.tokens for sent in self.messages if sent.role is not Role.SYSTEM])

    @property
    def memory_tokens(self) -> int:
        """Tokens of memory blocks and hidden rounds that no condensation has covered yet."""
        return sum(item.message.tokens for item in self.front[self.head_size :] if not item.intact)

    @cached_property
    def structure(self) -> Structure:
        # A kept message says itself what its item would say.
        return structure([item.message if isinstance(item.piece, Keep) else item for item in self.items])

    @cached_property
    def task(self) -> int | None:
        return self.item_of(self.transcript.task)

    @cached_property
    def last_user(self) -> int | None:
        return self.item_of(self.transcript.last_user)

    @cached_property
    def question(self) -> tuple[int, ...]:
        return self._items_of(self.transcript.question)

    @cached_property
    def stays(self) -> tuple[int, ...]:
        return self._items_of(self.transcript.stays)

    def _items_of(self, indices: Iterable[int]) -> tuple[int, ...]:
        return tuple(item for index in indices if (item := self.item_of(index)) is not None)

    @cached_property
    def replacement(self) -> int | None:
        """The item that is the replacement; a view holds at most one."""
        return next((i for i, item in enumerate(self.front) if item.is_replacement), None)

    @cached_property
    def last_cut(self) -> int:
        """No condensation may reach past this item: the last user message or the newest round.

        If the view ends with a user message, neither that message may be condensed nor what the client has put before
        it since its last request. In an unfinished turn, all rounds except the newest may be condensed, and the
        question is kept among the pieces.
        """
        newest = self.structure.newest_round
        before_round = newest.start if newest else self.size
        return min(before_round, *self.question) if self.ends_with_user else before_round

    @property
    def ends_with_user(self) -> bool:
        """Whether nothing follows the last user message but what belongs to it."""
        last = self.last_user
        after = () if last is None else self.items[last + 1 :]
        return last is not None and all(is_carried(item.piece) for item in after)

    @property
    def is_opaque(self) -> bool:
        """Whether its head is a vendor's own compaction."""
        return self.head_size > 0 and is_opaque(self.front[0].piece)

    @property
    def without_opaque(self) -> View:
        """The view of the same transcript without any head, if the head is opaque; else the same view."""
        if not self.is_opaque:
            return self
        return fold(self.transcript, (), self.fixed_tokens - self.transcript.system_tokens, self.counter)

    @property
    def unplaced(self) -> Overlay | None:
        """What is carried and had no place before this view, as the patch that keeps it there; None if nothing is."""
        if not self.is_opaque:
            return None
        covered = self.covered_count
        standing = (patch for patch in carried_in(self.transcript.patches) if patch.stands_behind(covered))
        placed = {patch.at: patch.pieces for patch in standing}
        known = {piece for pieces in placed.values() for piece in pieces}
        shown = (item.piece for item in self.front[self.head_size :])
        pieces = tuple(piece for piece in shown if is_carried(piece) and piece not in known)
        if not pieces:
            return None
        place = _place_of_carried(self.transcript, covered)
        anchor = self.transcript.digests[place - 1]
        return Overlay(anchor, place, 0, (*placed.get(place, ()), *pieces), covered)

    @cached_property
    def is_changed(self) -> bool:
        """Whether the view differs from the transcript."""
        return self.own_from != len(self.front) or any(not self._is_as_sent(item) for item in self.front)

    def bound_to(self, until: int | None) -> View:
        """The same view with another `Transcript.bound_until`: that of its whole chain, or None."""
        transcript, end = self.transcript.having(bound_until=until), len(self.transcript.chain)
        front = _resolve([item.piece for item in self.items], transcript, self.counter, until)
        return replace(self, transcript=transcript, front=tuple(front), own_from=end)

    def over(self, transcript: Transcript) -> View:
        """The same view over the same messages, some of which are written otherwise."""
        chain = transcript.chain
        front = [
            Item(chain[item.piece.source], item.piece)
            if isinstance(item.piece, Keep) and self._is_as_sent(item)
            else item
            for item in self.front
        ]
        return replace(self, transcript=transcript.having(bound_until=self.transcript.bound_until), front=tuple(front))

    def _is_as_sent(self, item: Item) -> bool:
        """Whether an item is one of the client's messages, complete with any reasoning."""
        return isinstance(item.piece, Keep) and item.message is self.transcript.chain[item.piece.source]

    def item_of(self, index: int | None) -> int | None:
        """The item that is the chain message `index` or stands for it."""
        if index is None:
            return None
        if index >= self.own_from:
            return len(self.front) + index - self.own_from
        return self._places.get(index)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {source: i for i, item in enumerate(self.front) if (source := item.piece.source) is not None}

    @cached_property
    def messages(self) -> Sequence[Message]:
        """The messages as they are sent, system messages included, in the form that the upstream accepts."""
        form = self._form
        if form is None:
            sent = self._in_order(self._place_of_systems)
            return self._with_first_blocks(sent) if self._joins_ours else sent
        # In an alternating list, the systems inside the covered span can only be at the very beginning.
        systems_first = form.alternate_roles or not form.middle_system
        messages, items = self._in_order(0 if systems_first else self._place_of_systems), iter(self.items)
        placed = (Placed(sent, None if sent.role is Role.SYSTEM else next(items).piece) for sent in messages)
        return list(shape(placed, form, self.counter))

    @property
    def _joins_ours(self) -> bool:
        return self.counter.dialect.joins_ours and self.is_opaque

    def _with_first_blocks(self, sent: Iterable[Message]) -> list[Message]:
        """The messages, with what we add behind an opaque head as first blocks of the user's message after it."""
        ours = {
            id(item.message) for item in self.front[self.head_size :] if not (item.intact or item.message.is_result)
        }
        joined: list[Message] = []
        for message in sent:
            if joined and id(joined[-1]) in ours and joined[-1].written_role == message.written_role == "user":
                both = self.counter.dialect.merged(joined[-1].body, message.body)
                joined[-1] = literal(both, self.counter, message.role)
                if id(message) in ours:
                    ours.add(id(joined[-1]))
            else:
                joined.append(message)
        return joined

    @property
    def _place_of_systems(self) -> int:
        """The chain index where the system messages of the covered span go: behind the head.

        Nothing may follow an opaque head but what was kept: they go before it, or to what is carried if they may only
        follow a user message.
        """
        if not self.is_opaque:
            return self.covered_count
        if not self.counter.dialect.systems_follow_users:
            return 0
        behind = (patch.at for patch in carried_in(self.transcript.patches) if patch.under == self.covered_count)
        return min(behind, default=_place_of_carried(self.transcript, self.covered_count))

    def _in_order(self, behind: int) -> list[Message]:
        """The messages in order; `behind` is the chain index where the system messages of the covered span go.

        Where something is carried, system messages follow it: those that may only follow a user message do so, and a
        client's signal that must end the list (`compaction_trigger`) still ends it.
        """
        waiting: dict[int, list[Message]] = defaultdict(list)
        for place, system in self.transcript.systems:
            stands = place <= self.transcript.leading or place > self.covered_count
            waiting[place if stands else behind].append(system)
        end, placed = self._end_of_turn_in_head, waiting.pop(0, [])
        for i, item in enumerate(self.front[:end], 1):
            placed.append(item.message)
            placed += waiting.pop(i, ()) if i <= self.transcript.leading else ()
        placed += waiting.pop(self.covered_count, ())
        due: Sequence[Message] = ()
        for i, item in enumerate(self.front[end:], end):
            if due and not is_carried(item.piece):
                placed += due
                due = ()
            placed.append(item.message)
            if i >= self.head_size and isinstance(item.piece, Keep):
                due = waiting.pop(item.piece.source + 1, ())
        placed += due
        done, chain = self.own_from, self.transcript.chain
        for place in sorted(waiting):
            placed += chain[done:place]
            done = max(done, place)
            placed += waiting[place]
        return [*placed, *chain[done:]]

    @property
    def _end_of_turn_in_head(self) -> int:
        """The system messages of the covered span go before this item: the first one after the head.

        If they may only follow a user message, it is the first after the head's last message that is not the
        assistant's.
        """
        if not self.counter.dialect.systems_follow_users:
            return self.head_size
        ends = (i for i in range(self.head_size, 0, -1) if self.front[i - 1].message.role is not Role.ASSISTANT)
        return next(ends, self.head_size)

    def to_json(self) -> str:
        """The message list as JSON text. The client's messages keep their original text."""
        data = b",".join([message.data for message in self.messages])
        return f"[{data.decode('utf-8', 'surrogatepass')}]"


def fold(transcript: Transcript, overlays: Sequence[Overlay], fixed: int, counter: TokenCounter) -> View:
    """The view of a transcript. The overlay that covers most becomes the head; the others insert their pieces.

    The head shows pinned messages even if it was made before the pin. Behind an opaque head, what is carried stands at
    the place where the view first had it (`View.unplaced`); until it has one, before the question that the list ends
    with, or else at the end of the list.

    A patch belongs to the message before it, and what is carried may follow the last one. A head that covers that
    message was made with the patch in place, so the patch is not inserted again, unless it was placed behind that head.

    Messages from before the head was first sent lose their signed reasoning (`Transcript.bound_until`). So does a reply
    that came after hidden rounds, because the client has joined it with what was said before them.
    """
    until = transcript.bound_until
    if not (overlays or transcript.patches or (until and transcript.is_signed)):
        return View(transcript, (), 0, 0, fixed + transcript.system_tokens, counter, 0)
    head = max((overlay for overlay in overlays if overlay.covered), key=lambda overlay: overlay.covered, default=None)
    covered = head.covered if head else 0
    inserted: dict[int, list[Piece]] = defaultdict(list)
    has_opaque_head = head is not None and any(map(is_opaque, head.pieces[:1]))
    for patch in transcript.patches:
        if patch.stands_behind(covered) and (has_opaque_head or not patch.is_carried):
            inserted[patch.at].extend(patch.pieces)
    for overlay in overlays:
        if overlay.covered == 0 and overlay.at >= covered:
            inserted[overlay.at].extend(overlay.pieces)
    pinned = {index for index in transcript.pinned if index < covered}
    pieces: Sequence[Piece] = with_kept(head.pieces, pinned, transcript.leading) if head and not has_opaque_head else ()
    if head and has_opaque_head:
        pieces = tuple(filter(is_opaque, head.pieces))
        placed = [piece for each in inserted.values() for piece in each]
        inserted[_place_of_carried(transcript, covered)] += _carried(head.pieces, placed, pinned, transcript)
    front = list(_resolve(pieces, transcript, counter, until))
    length = len(front)
    bound = min(until, len(transcript.chain)) if until and transcript.is_signed else 0
    rest = min(max([covered, bound, *(at + 1 for at in inserted)]), len(transcript.chain))
    for i in range(covered, rest):
        before = inserted.pop(i, ())
        front.extend(_resolve(before, transcript, counter, until if i < bound else None))
        is_joined = any(isinstance(piece, Literal) and piece.kind is PieceKind.PATCH for piece in before)
        front.extend(_resolve((Keep(i),), transcript, counter, i + 1 if is_joined and until is not None else until))
    front.extend(_resolve(inserted.get(len(transcript.chain), ()), transcript, counter, None))
    return View(transcript, tuple(front), length, covered, fixed + transcript.system_tokens, counter, rest)


def _place_of_carried(transcript: Transcript, covered: int) -> int:
    """Where a view first places what is carried, as a chain index.

    If the list ends with a question, it goes directly before it: no reply was thought behind that yet, and the model
    reads the question last. Inside a turn it goes behind the newest round. It never goes behind a reply that the client
    has begun, nor between the head and the first message behind it.
    """
    chain = transcript.chain
    ends = (i for i in range(len(chain), covered, -1) if chain[i - 1].role is not Role.ASSISTANT)
    end = next(ends, len(chain))
    is_before_question = covered < end - 1 and chain[end - 1].role is Role.USER
    return end - is_before_question


def _carried(
    pieces: Iterable[Piece], placed: Sequence[Piece], pinned: Iterable[int], transcript: Transcript
) -> list[Piece]:
    """What an opaque head has to carry, pinned messages included, and has no place yet."""
    opaque, waiting = [], []
    for piece in pieces:
        if is_opaque(piece):
            opaque.append(piece)
        elif piece not in placed:
            waiting.append(piece)
    shown = {piece.source for piece in (*opaque, *placed, *waiting)}
    return waiting + [carried(index, transcript) for index in sorted(pinned) if index not in shown]


def carried(index: int, transcript: Transcript) -> Literal:
    """A message of the chain as it is carried: what a model thought before it was bound to its old place."""
    message = transcript.chain[index]
    raw = dump(message.dialect.unbound(message.body)) if message.is_signed else message.raw
    return Literal(raw, PieceKind.CARRIED, index)


def _resolve(
    pieces: Iterable[Piece], transcript: Transcript, counter: TokenCounter, bound_until: int | None
) -> Iterator[Item]:
    """The items of pieces.

    Messages before `bound_until`, and all that the proxy wrote, lose their signed reasoning; with None all keep it.
    """
    for piece in pieces:
        if isinstance(piece, Literal):
            role = None if piece.source is None else transcript.chain[piece.source].role
            if piece.kind is PieceKind.OPAQUE:
                role = Role.ASSISTANT  # its items may be of any kind, also of those that count as system messages
            written = literal(loads(piece.raw), counter, role, piece.raw)
            is_bound = bound_until is not None and written.is_signed
            yield Item(_unbound(written, counter) if is_bound else written, piece)
            continue
        index = piece.source
        if index is not None:
            message = transcript.chain[index]
            is_bound = bound_until is not None and index < bound_until and message.is_signed
            yield Item(_unbound(message, counter) if is_bound else message, Keep(index))


def _unbound(message: Message, counter: TokenCounter) -> Message:
    """A signed message without its reasoning."""
    return literal(message.dialect.unbound(message.body), counter, message.role)


def put_in(transcript: Transcript, counter: TokenCounter) -> tuple[tuple[int, Message], ...]:
    """What memory puts into views, each with its index in the chain; what is carried has that of the message before."""
    return tuple(
        (patch.at - patch.is_carried, item_for(piece, transcript, counter).message)
        for patch in transcript.patches
        for piece in patch.pieces
    )


def item_for(piece: Piece, transcript: Transcript, counter: TokenCounter) -> Item:
    until = None if piece.source is None else transcript.bound_until
    return next(_resolve((piece,), transcript, counter, until))
