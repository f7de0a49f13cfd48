"""Cached prefixes: the transcript of the messages that a conversation had at its last request.

The next request of a conversation repeats its messages and adds a few. The message cache recognises them one by one
(`proxy/request/message_cache.py`). The transcript built from all of them, with its digests and sums, is kept here, so
that a turn costs its new messages and not a step for each old one. A prefix is without the last message of a request,
which clients rewrite, and without the system messages at its head, into which agents put the time of day and
applications the name of a user.

A prefix is stored on its last element and found by searching backwards from the end of a request. It is dropped when
the cache drops that element, or soon after it has dropped another one of the prefix. A conversation has one prefix for
each counter of tokens, which moves on with every request; the first one stays where it was too, because other
conversations may continue from there. Like the elements, a prefix depends on bytes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.request.elements import CachedPrefix, CountedTranscript, Element
from strategies.core.messages import SYSTEM_ROLES

MIN_MESSAGES = 16
"""The fewest messages for which a prefix saves anything."""
MAX_COUNTERS = 4
"""The most prefixes on one element, each counted by another counter."""
MAX_NEW_MESSAGES = 64
"""How many messages from the end of a request a prefix is searched; a turn adds fewer."""


def end_of_systems(elements: Sequence[Element]) -> int:
    """The index of the first element that is not a system message."""
    return next((i for i, each in enumerate(elements) if each.role not in SYSTEM_ROLES), len(elements))


def find_prefix(elements: Sequence[Element], counted_by: str) -> CachedPrefix | None:
    """The cached prefix of a message list that has no system messages at its head; None if there is none."""
    for element in reversed(elements[-MAX_NEW_MESSAGES:]):
        for prefix in element.prefixes:
            if prefix.counted_by == counted_by:
                return prefix if prefix.elements == elements[: len(prefix.elements)] else None
    return None


def store_prefix(elements: Sequence[Element], counted_by: str, found: CachedPrefix | None) -> None:
    """Stores the prefix of a message list, all elements but the last; `found` is what `find_prefix` gave for the list.

    The new prefix takes the place of `found`, unless that is a first one.
    """
    start, end = len(found.elements) if found else 0, len(elements) - 1
    # An element outside of the cache would never be made to drop its prefixes, nor be counted in the cache's size.
    if end < MIN_MESSAGES or start >= end or not all(each.cost for each in elements[start:end]):
        return
    added = [each.messages[counted_by] for each in elements[start:end]]
    if found is None:
        counted = CountedTranscript.of(added)
    else:
        if not found.is_first:
            found.elements[-1].prefixes = _other_prefixes(found.elements[-1], counted_by)
        counted = found.counted.followed(added)
    last = elements[end - 1]
    prefix = CachedPrefix(elements[:end], counted_by, counted, is_first=found is None)
    last.prefixes = (*_other_prefixes(last, counted_by)[-(MAX_COUNTERS - 1) :], prefix)


def _other_prefixes(element: Element, counted_by: str) -> tuple[CachedPrefix, ...]:
    """The prefixes of an element that other counters counted."""
    return tuple(each for each in element.prefixes if each.counted_by != counted_by)
