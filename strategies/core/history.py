"""History as text: writes messages for a summarizer or judge to read.

The text is data that the model must not obey, so each message is in its own fence with its chain index and role, and
fences inside a message are broken. The text is made to fit a number of tokens: first tool output is abridged, then
every message, and if that is not enough, whole messages in the middle are left out.

A model with a small window is shown a long history in parts (`in_parts`), cut between messages;
docs/internals/strategies.md says what is shortened in which order.

A history may have a million tokens, and is never counted as one text. The count of a message bounds its tokens inside
a fence, so only abridged messages are counted again, and only if the bound does not decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from strategies.core.excerpt import HEAD_SHARE, cut_text
from strategies.core.messages import Message, Role, TokenCounter
from strategies.core.view import Item, View


class Limits(NamedTuple):
    """The maximum number of characters shown of a message's words, of a tool's result, and of a call's arguments.

    If `results` is 0, the size of a result is shown instead.
    """

    words: int
    results: int
    arguments: int


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
_PER_FENCE = 24
_NOTE_TOKENS = 16


def _levels(limits: Limits) -> list[Limits]:
    return [Limits(*map(min, level, limits)) for level in _LEVELS]


def originals(view: View, items: Sequence[Item]) -> list[tuple[int, Message]]:
    """The messages that items come from, with their chain indices; for a masked or cut item, the client's original."""
    chain = view.transcript.chain
    return [(item.source, chain[item.source]) for item in items if item.source is not None]


def as_text(messages: Sequence[tuple[int, Message]], cap: int, counter: TokenCounter, limits: Limits = WIDEST) -> str:
    """Fenced text of (chain index, message) pairs in at most `cap` tokens, each message within `limits`.

    If necessary, the middle is left out.
    """
    fences, levels = _Fences(counter), _levels(limits)
    text = _all_as_text(messages, cap, fences, levels)
    return "\n".join(_without_middle(messages, cap, fences, levels[-1])) if text is None else text


def in_one(
    messages: Sequence[tuple[int, Message]], cap: int, counter: TokenCounter, limits: Limits = WIDEST
) -> str | None:
    """Fenced text of all messages in at most `cap` tokens, each within `limits`; None if they do not fit.

    Messages are abridged only mildly, so that a reader still knows what they were.
    """
    return _all_as_text(messages, cap, _Fences(counter), _levels(limits)[:_MILD])


def in_parts(
    messages: Sequence[tuple[int, Message]], cap: int, most: int, counter: TokenCounter, limits: Limits = WIDEST
) -> list[str]:
    """Fenced text of messages in at most `most` parts of at most `cap` tokens each, every message within `limits`."""
    fences, levels = _Fences(counter), _levels(limits)
    for level in levels:
        sized = ((entry.text, entry.tokens(counter)) for entry in _entries(messages, level, fences))
        parts = list(islice(_pack(sized, cap, counter), most + 1))
        if len(parts) <= most:
            return parts
    # Any two consecutive parts have more than `cap` tokens together, so text for half of the room always fits.
    rest = _without_middle(messages, cap * most // 2, fences, levels[-1])
    return list(_pack(((text, counter.text(text) + 1) for text in rest), cap, counter))


def _all_as_text(
    messages: Sequence[tuple[int, Message]], cap: int, fences: _Fences, levels: Sequence[Limits]
) -> str | None:
    """All messages as one text, at the first level of abridging at which they fit; None if they fit at none."""
    for level in levels:
        entries = _all_within(_entries(messages, level, fences), cap, fences.counter)
        if entries is not None:
            return "\n".join(entry.text for entry in entries)
    return None


def _pack(texts: Iterable[tuple[str, int]], cap: int, counter: TokenCounter) -> Iterator[str]:
    """Joins texts, given with their tokens, into parts of at most `cap` tokens, in order; a larger text is cut."""
    part: list[str] = []
    room = cap
    for text, tokens in texts:
        if tokens > room and part:
            yield "\n".join(part)
            part, room = [], cap
        part.append(text if tokens <= cap else cut_text(text, cap, counter))
        room -= tokens
    yield "\n".join(part)


class _Entry(NamedTuple):
    """A message in its fence. `at_most` bounds its tokens; if nothing is abridged, it is used as their number."""

    text: str
    at_most: int
    abridged: bool

    def tokens(self, counter: TokenCounter) -> int:
        """The tokens of the entry with a newline after it, counted only if the message is abridged."""
        return min(counter.text(self.text) + 1, self.at_most) if self.abridged else self.at_most


class _Fences:
    """How many tokens a fence costs beyond the chat format's own frame. Counted once for each role."""

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = counter
        self._more: dict[tuple[str, Role], int] = {}

    def at_most(self, index: int, message: Message, broken: int) -> int:
        """A bound on the tokens of a whole message in its fence. Breaking inner fences added `broken` characters."""
        key, counter = (message.written_role, message.role), self.counter
        if key not in self._more:
            fence = counter.text(_open(0, message.role)) + counter.text("\n</message>\n")
            self._more[key] = fence + 1 - counter.message({"role": message.written_role, "content": ""})
        digits = len(str(index)) // 2
        parts = _PER_CALL * len(message.calls) + _PER_BROKEN_FENCE * broken
        return max(message.tokens + self._more[key], 0) + digits + parts


def _entries(messages: Iterable[tuple[int, Message]], limits: Limits, fences: _Fences) -> Iterator[_Entry]:
    for index, message in messages:
        text = message.printed  # read once: it is made anew each time
        parts = [_body(message, text, limits)]
        abridged = parts[0] is not text
        for call in message.calls:
            arguments = _abridge(call.arguments, limits.arguments)
            abridged = abridged or arguments is not call.arguments
            parts.append(f"calls {call.name}({arguments})")
        shown = "\n".join(parts)
        safe = break_fences(shown)
        fenced = f"{_open(index, message.role)}\n{safe}\n</message>"
        at_most = fences.at_most(index, message, len(safe) - len(shown))
        if message.role is Role.TOOL and (words := message.words):
            said = break_fences(_abridge(words, limits.words))
            fenced += f"\n{_open(index, Role.USER)}\n{said}\n</message>"
            at_most, abridged = at_most + fences.counter.text(said) + _PER_FENCE, True
        yield _Entry(fenced, at_most, abridged)


def _body(message: Message, text: str, limits: Limits) -> str:
    if message.role is not Role.TOOL:
        return _abridge(text, limits.words)
    return _abridge(text, limits.results) if limits.results else f"[a result of {message.tokens:,} tokens]"


def _open(index: int, role: Role) -> str:
    return f'<message index="{index}" role="{role.value}">'


def _all_within(entries: Iterable[_Entry], cap: int, counter: TokenCounter) -> list[_Entry] | None:
    """All entries, or None if they have more than `cap` tokens in total; stops reading as soon as that is certain."""
    kept: list[_Entry] = []
    room = cap
    for entry in entries:
        kept.append(entry)
        room -= 0 if entry.abridged else entry.at_most
        if room < 0:
            return None
    abridged = [entry for entry in kept if entry.abridged]
    if sum(entry.at_most for entry in abridged) <= room:
        return kept
    return kept if len(list(_within(abridged, room, counter))) == len(abridged) else None


def _without_middle(messages: Sequence[tuple[int, Message]], cap: int, fences: _Fences, limits: Limits) -> list[str]:
    """The first and the last messages that fit into `cap` tokens, within `limits`, with a note between them."""
    room, counter = cap - _NOTE_TOKENS, fences.counter
    forwards = _entries(messages, limits, fences)
    head = list(_within(forwards, int(room * HEAD_SHARE), counter))
    tail_room = room - sum(entry.tokens(counter) for entry in head)
    backwards = islice(_entries(reversed(messages), limits, fences), len(messages) - len(head))
    tail = list(_within(backwards, tail_room, counter))[::-1]
    note = f"[… {len(messages) - len(head) - len(tail):,} messages left out …]"
    texts = [*(entry.text for entry in head), note, *(entry.text for entry in tail)]
    return [cut_text("\n".join(texts), cap, counter)] if cap < 10 * _NOTE_TOKENS else texts


def _within(entries: Iterable[_Entry], room: int, counter: TokenCounter) -> Iterator[_Entry]:
    for entry in entries:
        room -= entry.tokens(counter)
        if room < 0:
            return
        yield entry


def _abridge(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]} […] {text[-half:]}"


def break_fences(text: str) -> str:
    """The text, changed so that it cannot open or close a fence."""
    if "<" not in text:
        return text
    return _FENCE.sub(r"<\\", text)
