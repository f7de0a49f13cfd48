"""History as text: what a summarizer is shown.

The text is data for a model that must not obey it, so each message stands in a fence of its own with its place
and role, and fences inside of it are broken. It is made to fit a number of tokens: tool output gives way
first, then every message, and what still does not fit is left out in the middle, whole messages at a time.

A history may have a million tokens and is never counted as a text. A message's own count bounds what it has in
its fence, so only abridged messages are counted, and those only where the bound does not settle it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from strategies.core.excerpt import HEAD_SHARE, cut_text
from strategies.core.transcript import Counter, Message, Role
from strategies.core.view import Item, View

_CAPS = ((4_000, 1_000), (1_500, 400), (600, 150), (250, 60))
_PER_CALL = 6
_PER_BROKEN_FENCE = 2
_NOTE_TOKENS = 16


def originals(view: View, items: Sequence[Item]) -> list[tuple[int, Message]]:
    """(chain index, message) behind items: for what was masked or cut, the message as the client sent it."""
    chain = view.transcript.chain
    return [(item.source, chain[item.source]) for item in items if item.source is not None]


def as_text(messages: Sequence[tuple[int, Message]], cap: int, counter: Counter) -> str:
    """Fenced text of messages in at most `cap` tokens."""
    frames = _Frames(counter)
    entries: list[_Entry] = []
    for for_words, for_results in _CAPS:
        entries = [_entry(index, message, for_words * 4, for_results * 4, frames) for index, message in messages]
        if _fit(entries, cap, counter):
            return "\n".join(entry.text for entry in entries)
    return _without_middle(entries, cap, counter)


class _Entry(NamedTuple):
    """A message in its fence; `at_most` are its tokens where nothing of it is abridged, else a bound."""

    text: str
    at_most: int
    abridged: bool

    def tokens(self, counter: Counter) -> int:
        """Its tokens with the newline behind it, counted only where they are not known."""
        return min(counter.text(self.text) + 1, self.at_most) if self.abridged else self.at_most


class _Frames:
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


def _entry(index: int, message: Message, for_words: int, for_results: int, frames: _Frames) -> _Entry:
    parts = [message.text, *(f"calls {call.name}({call.arguments})" for call in message.calls)]
    shown = [
        _abridged(message.text, for_results if message.role is Role.TOOL else for_words),
        *(f"calls {call.name}({_abridged(call.arguments, for_results)})" for call in message.calls),
    ]
    safe = [unfenced(part) for part in shown]
    broken = sum(map(len, safe)) - sum(map(len, shown))
    text = "\n".join((_open(index, message.role), *safe, "</message>"))
    return _Entry(text, frames.at_most(index, message, broken), shown != parts)


def _open(index: int, role: Role) -> str:
    return f'<message index="{index}" role="{role.value}">'


def _fit(entries: Iterable[_Entry], cap: int, counter: Counter) -> bool:
    entries = list(entries)
    if sum(entry.at_most for entry in entries) <= cap:
        return True
    left = cap - sum(entry.at_most for entry in entries if not entry.abridged)
    for entry in entries:
        if left < 0:
            return False
        left -= entry.tokens(counter) if entry.abridged else 0
    return left >= 0


def _without_middle(entries: Sequence[_Entry], cap: int, counter: Counter) -> str:
    """The first and the last entries that fit, with a note between them."""
    room = cap - _NOTE_TOKENS
    head = list(_within(entries, int(room * HEAD_SHARE), counter))
    rest = entries[len(head) :]
    tail = list(_within(reversed(rest), room - sum(entry.tokens(counter) for entry in head), counter))[::-1]
    if not head and not tail:
        return cut_text("\n".join(entry.text for entry in entries), cap, counter)
    note = f"[… {len(rest) - len(tail):,} messages left out …]"
    return "\n".join((*(entry.text for entry in head), note, *(entry.text for entry in tail)))


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
    return text.replace("</message", "<\\/message").replace("<message ", "<\\message ")
