"""Features: the amounts of each kind of text that the tokens of a request are made of. No I/O.

Another vocabulary costs more for one kind of text and less for another, so our own count is split by kind. Finding the
kinds of a message takes a fraction of its bytes: at most a few kilobytes of each are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add, mul, sub
from typing import NamedTuple

from strategies.core.transcript import Message, Role

SAMPLE = 2_048  # bytes of a message that are looked at
_PER_CONTINUATION = 1.5  # bytes of a character of three bytes, for each of its bytes behind the first
_PER_ESCAPE = 6  # bytes of a character that is written as \uXXXX


class Features(NamedTuple):
    """Amounts of what costs tokens, for a whole request or for a part of it; also the price of each."""

    requests: float = 0.0
    """1 for a whole request, 0 for a part of one."""
    offers: float = 0.0
    """1 if it offers tools."""
    messages: float = 0.0
    """The number of messages."""
    words: float = 0.0
    """Tokens of text in Latin letters, by our own count, as are all that follow."""
    code: float = 0.0
    """Tokens of calls and results in Latin letters."""
    non_latin: float = 0.0
    """Tokens in other than Latin letters."""
    outside: float = 0.0
    """Tokens outside of messages: tools and framing."""

    @property
    def own(self) -> float:
        """Tokens by our own count."""
        return self.words + self.code + self.non_latin + self.outside

    def plus(self, other: Features) -> Features:
        """The amounts of both."""
        return Features(*map(add, self, other))

    def minus(self, other: Features) -> Features:
        """The amounts that the other does not have."""
        return Features(*map(sub, self, other))

    def at(self, prices: Features) -> float:
        """The cost of these amounts."""
        cost: float = sum(map(mul, self, prices))
        return cost


def of_messages(messages: Iterable[Message]) -> Features:
    """The features of some messages."""
    number = 0
    words = code = wide = 0.0
    for message in messages:
        number += 1
        share = _shares.get(message.digest)
        if share is None:
            share = _look_at(message)
        wide += message.tokens * share
        if message.role is Role.TOOL or message.calls:
            code += message.tokens * (1 - share)
        else:
            words += message.tokens * (1 - share)
    return Features(messages=number, words=words, code=code, non_latin=wide)


_MOST_SHARES = 8_000
_shares: dict[bytes, float] = {}
"""The shares of messages by digest: a history comes again with every request, and is looked at once."""


def _look_at(message: Message) -> float:
    """Finds the share of a message that is not known yet; a message of our own has no digest to remember it by."""
    share = non_latin_share(message.data)
    if message.digest:
        if len(_shares) >= _MOST_SHARES:
            _shares.clear()
        _shares[message.digest] = share
    return share


def non_latin_share(data: bytes) -> float:
    """The approximate share of a JSON text that is in other than Latin letters, from 0 to 1."""
    sample = data[:SAMPLE]
    if not sample:
        return 0.0
    escaped = _PER_ESCAPE * sample.count(b"\\u")
    behind = 0 if sample.isascii() else len(sample) - len(sample.decode("utf-8", "ignore"))
    return min(1.0, (_PER_CONTINUATION * behind + escaped) / len(sample))
