"""Pins: messages that a person wants to see word for word in every later view.

A pin names a message by the chain digest after it. With it stay all messages that no cut may part from it: a call has
its results, a result its call, and a part of a reply the rest of that reply. All of them together have at most an
eighth of the window; those that were pinned first come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from strategies.core.messages import Message
from strategies.core.rounds import structure
from strategies.core.transcript import Transcript

PIN_SHARE = 8
"""The part of the window that pinned messages may take together: one eighth."""


def pinned_in(
    nodes: Iterable[bytes],
    transcript: Transcript,
    window: int | None,
    tokens: Callable[[Message], int] = attrgetter("tokens"),
) -> frozenset[int]:
    """The chain indices of what stays for the pins with these digests, in the order in which they were made.

    A pin that does not fit beside the earlier ones into its share of the `window`, in tokens, keeps nothing. Neither
    does one of which not all text is known.
    """
    chain, places = transcript.chain, {digest: i for i, digest in enumerate(transcript.digests)}
    found = [places[node] for node in nodes if node in places]
    cuts = structure(chain).cuts if found else []
    pinned: set[int] = set()
    spent = 0
    for index in found:
        start = next(i for i in range(index, -1, -1) if cuts[i])
        end = next(i for i in range(index + 1, len(cuts)) if cuts[i])
        more = set(range(start, end)) - pinned
        if not all(chain[i].has_text for i in more):
            continue
        size = sum(tokens(chain[i]) for i in more)
        if window is None or spent + size <= window // PIN_SHARE:
            pinned |= more
            spent += size
    return frozenset(pinned)
