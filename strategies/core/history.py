"""History as text: what a summarizer is shown.

The text is data for a model that must not obey it, so each message stands in a fence of its own with its place
and role, and fences inside of it are broken. It is made to fit a number of tokens: tool output gives way
first, then every message, and what still does not fit is left out in the middle, whole messages at a time.

A model with a small window is shown a long history in parts (`in_parts`), cut between messages. One part comes first,
while a message keeps so much of its text that a reader still knows what it was; then as many parts as are allowed;
only then does every message give way further, and at last the middle of the history.

A history may have a million tokens and is never counted as a text. A message's own count bounds what it has in
its fence, so only abridged messages are counted, and those only where the bound does not settle it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from strategies.core.excerpt import HEAD_SHARE, cut_text
from strategies.core.transcript import Counter, Message, Role
from strategies.core.view import Item, View


class Limits(NamedTuple):
    """The most characters of a message's words, of a tool's result, and of the arguments of a call."""

    words: int
    results: int
    arguments: int

    def within(self, other: Limits) -> Limits:
        """The tighter of two, kind by kind."""
        return Limits(*map(min, self, other))


_LEVELS = (
    Limits(16_000, 4_000, 4_000),
    Limits(6_000, 1_600, 1_600),
    Limits(2_400, 600, 600),
    Limits(1_000, 240, 240),
)
_MILD = 2
WIDEST = _LEVELS[0]
_FENCE = re.compile(r"<(?=/?(?:message|history|earlier_record)\b)")
_PER_CALL = 6
_PER_BROKEN_FENCE = 2
_NOTE_TOKENS = 16


def originals(view: View, items: Sequence[Item]) -> list[tuple[int, Message]]:
    """(chain index, message) behind items: for what was masked or cut, the message as the client sent it."""
    chain = view.transcript.chain
    found = [(item.source, item) for item in items if item.source is not None]
    return [(index, chain[index] if chain[index].known else item.message) for index, item in found]


def as_text(messages: Sequence[tuple[int, Message]], cap: int, counter: Counter) -> str:
    """Fenced text of messages in at most `cap` tokens."""
    fences = _Fences(counter)
    whole = _whole(messages, cap, fences, _LEVELS)
    return "\n".join(_without_middle(messages, cap, fences)) if whole is None else whole


def in_one(messages: Sequence[tuple[int, Message]], cap: int, counter: Counter, limits: Limits = WIDEST) -> str | None:
    """Fenced text of all messages in at most `cap` tokens, each of them within `limits`; None where that is too little.

    No message is abridged so far that a reader would not know any more what it was.
    """
    return _whole(messages, cap, _Fences(counter), [level.within(limits) for level in _LEVELS[:_MILD]])


def in_parts(
    messages: Sequence[tuple[int, Message]], cap: int, most: int, counter: Counter, limits: Limits = WIDEST
) -> list[str]:
    """Fenced text of messages in at most `most` parts of at most `cap` tokens each, every message within `limits`."""
    fences = _Fences(counter)
    levels = [level.within(limits) for level in _LEVELS]
    whole = _whole(messages, cap, fences, levels[:_MILD])
    if whole is not None:
        return [whole]
    for level in levels:
        entries = _entries(messages, level, fences)
        sized = ((entry.text, entry.tokens(counter)) for entry in entries)
        parts = list(islice(_packed(sized, cap, counter), most + 1))
        if len(parts) <= most:
            return parts
    # Two parts that follow each other hold more than `cap` together, so half of the room is never too much.
    rest = _without_middle(messages, cap * most // 2, fences)
    return list(_packed(((text, counter.text(text) + 1) for text in rest), cap, counter))


def _whole(messages: Sequence[tuple[int, Message]], cap: int, fences: _Fences, levels: Sequence[Limits]) -> str | None:
    """All messages as one text at the first level at which they fit, or None."""
    for level in levels:
        entries = _all_within(_entries(messages, level, fences), cap, fences.counter)
        if entries is not None:
            return "\n".join(entry.text for entry in entries)
    return None


def _packed(texts: Iterable[tuple[str, int]], cap: int, counter: Counter) -> Iterator[str]:
    """Texts with their tokens put together, in order, to parts of `cap` tokens; one that is larger is cut."""
    part: list[str] = []
    left = cap
    for text, tokens in texts:
        if tokens > left and part:
            yield "\n".join(part)
            part, left = [], cap
        part.append(text if tokens <= cap else cut_text(text, cap, counter))
        left -= tokens
    yield "\n".join(part)


class _Entry(NamedTuple):
    """A message in its fence; `at_most` are its tokens where nothing of it is abridged, else a bound."""

    text: str
    at_most: int
    abridged: bool

    def tokens(self, counter: Counter) -> int:
        """Its tokens with the newline behind it, counted only where they are not known."""
        return min(counter.text(self.text) + 1, self.at_most) if self.abridged else self.at_most


class _Fences:
    """What a fence costs more than the chat format's own frame, by role; each is counted once."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._more: dict[tuple[object, Role], int] = {}

    def at_most(self, index: int, message: Message, broken: int) -> int:
        """Tokens of a whole message in its fence, in which `broken` fences were broken."""
        key = (message.written, message.role)
        if key not in self._more:
            self._more[key] = self._measured(*key)
        digits = len(str(index)) // 2
        parts = _PER_CALL * len(message.calls) + _PER_BROKEN_FENCE * broken
        return max(message.tokens + self._more[key], 0) + digits + parts

    def _measured(self, written: object, role: Role) -> int:
        fence = self.counter.text(_open(0, role)) + self.counter.text("\n</message>\n")
        return fence + 1 - self.counter.message({"role": written, "content": ""})


def _entries(messages: Iterable[tuple[int, Message]], limits: Limits, fences: _Fences) -> Iterator[_Entry]:
    """Entries within limits, made as they are asked for."""
    for index, message in messages:
        text = message.text
        parts = [_abridged(text, limits.results if message.role is Role.TOOL else limits.words)]
        abridged = parts[0] is not text
        for call in message.calls:
            arguments = _abridged(call.arguments, limits.arguments)
            abridged = abridged or arguments is not call.arguments
            parts.append(f"calls {call.name}({arguments})")
        shown = "\n".join(parts)
        safe = unfenced(shown)
        fenced = f"{_open(index, message.role)}\n{safe}\n</message>"
        yield _Entry(fenced, fences.at_most(index, message, len(safe) - len(shown)), abridged)


def _open(index: int, role: Role) -> str:
    return f'<message index="{index}" role="{role.value}">'


def _all_within(entries: Iterable[_Entry], cap: int, counter: Counter) -> list[_Entry] | None:
    """All entries, or None where they have more than `cap` tokens; gives up as soon as that is known."""
    kept: list[_Entry] = []
    for_whole = for_abridged = 0
    for entry in entries:
        kept.append(entry)
        if entry.abridged:
            for_abridged += entry.at_most
        else:
            for_whole += entry.at_most
        if for_whole > cap:
            return None
    if for_whole + for_abridged <= cap:
        return kept
    abridged = [entry for entry in kept if entry.abridged]
    return kept if len(list(_within(abridged, cap - for_whole, counter))) == len(abridged) else None


def _without_middle(messages: Sequence[tuple[int, Message]], cap: int, fences: _Fences) -> list[str]:
    """The first and the last messages, abridged most, that fit into `cap` tokens, with a note between them."""
    room, counter = cap - _NOTE_TOKENS, fences.counter
    forwards = _entries(messages, _LEVELS[-1], fences)
    head = list(_within(forwards, int(room * HEAD_SHARE), counter))
    left = room - sum(entry.tokens(counter) for entry in head)
    backwards = islice(_entries(reversed(messages), _LEVELS[-1], fences), len(messages) - len(head))
    tail = list(_within(backwards, left, counter))[::-1]
    note = f"[… {len(messages) - len(head) - len(tail):,} messages left out …]"
    texts = [*(entry.text for entry in head), note, *(entry.text for entry in tail)]
    return [cut_text("\n".join(texts), cap, counter)] if cap < 10 * _NOTE_TOKENS else texts


def _within(entries: Iterable[_Entry], room: int, counter: Counter) -> Iterator[_Entry]:
    for entry in entries:
        room -= entry.tokens(counter)
        if room < 0:
            return
        yield entry


def _abridged(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]} […] {text[-half:]}"


def unfenced(text: str) -> str:
    """Text that cannot close the fence it stands in."""
    if "<" not in text:
        return text
    return _FENCE.sub(r"<\\", text)
