"""Beginnings: what was made of the messages that a conversation began with the last time.

A conversation's next request has the same messages, and a few behind them. They are known one by one
(`proxy/request/message_cache.py`); what is made of them together, the transcript with its digests and sums, is kept
here, so that a turn costs its new messages and not a step for each old one. The last message is left out of it: clients
rewrite that one. So are the system messages at the head: agents put the time of day into them, and applications the
name of a user.

A beginning hangs on its last element and is found by looking back from a request's end. It is forgotten with that
element, or soon after another of its own was. A conversation has one for each of what counts its tokens, which moves on
with each request, and the first one stays where it was: others may go on from there. What it says depends on bytes
alone, like the elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from proxy.calibration.features import Features, of_messages
from proxy.request.message_cache import Element
from strategies.core.transcript import SYSTEM_ROLES, Message, Transcript

LEAST = 16
"""Messages from which on a beginning saves anything."""
MOST_KINDS = 4
"""Beginnings that one element has, each counted by something else."""
MOST_NEW = 64
"""Messages behind a beginning up to which it is looked for; a turn adds fewer."""


class Summed(NamedTuple):
    """A transcript, and what the tokens of its chain are made of."""

    transcript: Transcript
    features: Features

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Summed:
        """That of some messages."""
        transcript = Transcript.of(messages)
        return cls(transcript, of_messages(transcript.chain))

    def followed(self, messages: Iterable[Message]) -> Summed:
        """That of the same messages with more behind them."""
        longer = self.transcript.followed(messages)
        return Summed(longer, self.features.plus(of_messages(longer.chain[len(self.transcript.chain) :])))

    def led_by(self, systems: Sequence[Message]) -> Summed:
        """That of the same messages with system messages before them."""
        return Summed(self.transcript.led_by(systems), self.features)


class CachedPrefix(NamedTuple):
    """Some elements, and what was made of them by what counted their tokens; `is_first` where none was known before."""

    elements: Sequence[Element]
    counted_by: str
    made: Summed
    is_first: bool

    @property
    def is_kept(self) -> bool:
        """Whether none of its elements was forgotten."""
        return all(each.cost for each in self.elements)


def behind_systems(elements: Sequence[Element]) -> int:
    """Where in a message list the first one stands that is no system message."""
    return next((i for i, each in enumerate(elements) if each.role not in SYSTEM_ROLES), len(elements))


def beginning_of(elements: Sequence[Element], counted_by: str) -> CachedPrefix | None:
    """The beginning of a message list, without the system messages at its head, as it was the last time; or None."""
    for element in reversed(elements[-MOST_NEW:]):
        for known in element.beginnings:
            if known.counted_by == counted_by:
                return known if known.elements == elements[: len(known.elements)] else None
    return None


def remember(elements: Sequence[Element], counted_by: str, known: CachedPrefix | None) -> None:
    """Keeps the beginning of such a list, all but the last; `known` is the one that was found for it."""
    first, end = len(known.elements) if known else 0, len(elements) - 1
    # One that is not kept would never let go of what holds it, nor be counted among what is.
    if end < LEAST or first >= end or not all(each.cost for each in elements[first:end]):
        return
    added = [each.counted[counted_by] for each in elements[first:end]]
    if known is None:
        made = Summed.of(added)
    else:
        if not known.is_first:
            known.elements[-1].beginnings = _others(known.elements[-1], counted_by)
        made = known.made.followed(added)
    last = elements[end - 1]
    beginning = CachedPrefix(elements[:end], counted_by, made, is_first=known is None)
    last.beginnings = (*_others(last, counted_by)[-(MOST_KINDS - 1) :], beginning)


def _others(element: Element, counted_by: str) -> tuple[CachedPrefix, ...]:
    """The beginnings of an element that something else counted."""
    return tuple(each for each in element.beginnings if each.counted_by != counted_by)
