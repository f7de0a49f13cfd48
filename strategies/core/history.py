"""History as text: what a summarizer is shown.

The text is data for a model that must not obey it, so each message stands in a fence of its own with its place
and role, and fences inside of it are broken. It is made to fit a number of tokens: tool output gives way
first, then every message, and what still does not fit is left out in the middle, whole messages at a time.

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

_CAPS = ((4_000, 1_000), (1_500, 400), (600, 150), (250, 60))
_FENCE = re.compile(r"<(?=/?(?:message|history|earlier_record)\b)")
_PER_CALL = 6
_PER_BROKEN_FENCE = 2
_NOTE_TOKENS = 16


def originals(view: View, items: Sequence[Item]) -> list[tuple[int, Message]]:
    """(chain index, message) behind items: for what was masked or cut, the message as the client sent it."""
    chain = view.transcript.chain
    return [(item.source, chain[item.source]) for item in items if item.source is not None]


def as_text(messages: Sequence[tuple[int, Message]], cap: int, counter: Counter) -> str:
    """Fenced text of messages in at most `cap` tokens."""
    fences = _Fences(counter)
    for for_words, for_results in _CAPS:
        entries = _all_within(_entries(messages, for_words * 4, for_results * 4, fences), cap, counter)
        if entries is not None:
            return "\n".join(entry.text for entry in entries)
    for_words, for_results = _CAPS[-1]
    forwards = _entries(messages, for_words * 4, for_results * 4, fences)
    backwards = _entries(reversed(messages), for_words * 4, for_results * 4, fences)
    return _without_middle(forwards, backwards, len(messages), cap, counter)


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
        self._counter = counter
        self._more: dict[tuple[object, Role], int] = {}

    def at_most(self, index: int, message: Message, broken: int) -> int:
        """Tokens of a whole message in its fence, in which `broken` fences were broken."""
        key = (message.body.get("role"), message.role)
        if key not in self._more:
            self._more[key] = self._measured(*key)
        digits = len(str(index)) // 2
        parts = _PER_CALL * len(message.calls) + _PER_BROKEN_FENCE * broken
        return max(message.tokens + self._more[key], 0) + digits + parts

    def _measured(self, written: object, role: Role) -> int:
        fence = self._counter.text(_open(0, role)) + self._counter.text("\n</message>\n")
        return fence + 1 - self._counter.message({"role": written, "content": ""})


def _entries(
    messages: Iterable[tuple[int, Message]], for_words: int, for_results: int, fences: _Fences
) -> Iterator[_Entry]:
    """Entries in which words and results have at most so many characters each, made as they are asked for."""
    for index, message in messages:
        text = message.text
        parts = [_abridged(text, for_results if message.role is Role.TOOL else for_words)]
        abridged = parts[0] is not text
        for call in message.calls:
            arguments = _abridged(call.arguments, for_results)
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


def _without_middle(
    forwards: Iterable[_Entry], backwards: Iterable[_Entry], count: int, cap: int, counter: Counter
) -> str:
    """The first and the last of `count` entries that fit, with a note between them."""
    room = cap - _NOTE_TOKENS
    head = list(_within(forwards, int(room * HEAD_SHARE), counter))
    left = room - sum(entry.tokens(counter) for entry in head)
    tail = list(_within(islice(backwards, count - len(head)), left, counter))[::-1]
    note = f"[… {count - len(head) - len(tail):,} messages left out …]"
    text = "\n".join((*(entry.text for entry in head), note, *(entry.text for entry in tail)))
    return cut_text(text, cap, counter) if cap < 10 * _NOTE_TOKENS else text


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
    return _FENCE.sub(r"<\\", text)
