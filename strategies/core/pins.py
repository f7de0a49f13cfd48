"""Pins: messages that a person wants to see word for word in every later view.

A pin names a message by the chain digest after it. With it stay all messages that no cut may part from it: a call has
its results, a result its call, and a part of a reply the rest of that reply. All of them together have at most an
eighth of the window; those that were pinned first come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from strategies.core.messages import Message, Role
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
    chain, digests = transcript.chain, transcript.digests
    pinned: set[int] = set()
    spent = 0
    for node in nodes:
        if node not in digests:
            continue
        more = set(_unit(chain, digests.index(node))) - pinned
        if not all(chain[i].has_text for i in more):
            continue
        size = sum(tokens(chain[i]) for i in more)
        if window is None or spent + size <= window // PIN_SHARE:
            pinned |= more
            spent += size
    return frozenset(pinned)


def _unit(chain: Sequence[Message], index: int) -> range:
    """The messages around `index` that no cut may part."""
    start, end = index, index + 1
    while start and _is_joined(chain, start):
        start -= 1
    while end < len(chain) and _is_joined(chain, end):
        end += 1
    calls = {call.id for each in chain[start:end] for call in each.calls}
    if calls == {answered for each in chain[start:end] for answered in each.answers} and chain[start].role in _BEGINS:
        return range(start, end)
    # A client has parted calls and results: only a look at the whole list tells which belong together.
    cuts = structure(chain).cuts
    end = next(i for i in range(index + 1, len(cuts)) if cuts[i])
    return range(next(i for i in range(index, -1, -1) if cuts[i]), end)


_BEGINS = (Role.USER, Role.ASSISTANT)


def _is_joined(chain: Sequence[Message], index: int) -> bool:
    """Whether a message is a result, or goes on with the reply that the one before it is a part of."""
    before, message = chain[index - 1], chain[index]
    return message.role is Role.TOOL or (message.goes_on and before.role is message.role is Role.ASSISTANT)
