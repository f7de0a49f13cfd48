"""What the tokens of a request are made of. Pure.

Another vocabulary costs more for one kind of text and less for another, so our own count is split by kind. Each kind
costs a share of a message's bytes to find, and no more than a few kilobytes of each message are looked at.
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
    """Amounts of what costs tokens, for a whole request or for a part of it; also the price of each.

    `requests` is 1 for a whole one, `offers` 1 where it offers tools. All but these and `messages` are tokens by our
    own count: of `words` in Latin letters, of `code` (calls, results), of text in `wide` letters, of what stands
    `outside` of messages (tools, framing).
    """

    requests: float = 0.0
    offers: float = 0.0
    messages: float = 0.0
    words: float = 0.0
    code: float = 0.0
    wide: float = 0.0
    outside: float = 0.0

    @property
    def own(self) -> float:
        """Tokens by our own count."""
        return self.words + self.code + self.wide + self.outside

    def plus(self, other: Features) -> Features:
        """The amounts of both."""
        return Features(*map(add, self, other))

    def minus(self, other: Features) -> Features:
        """The amounts that the other has not."""
        return Features(*map(sub, self, other))

    def at(self, prices: Features) -> float:
        """What these amounts cost."""
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
    return Features(messages=number, words=words, code=code, wide=wide)


_MOST_SHARES = 8_000
_shares: dict[bytes, float] = {}
"""The shares of messages, looked at once for each digest: a history comes again with every request."""


def _look_at(message: Message) -> float:
    """The share of a message that is not known yet; a message of ours has no digest to know it by."""
    share = wide_share(message.data)
    if message.digest:
        if len(_shares) >= _MOST_SHARES:
            _shares.clear()
        _shares[message.digest] = share
    return share


def wide_share(data: bytes) -> float:
    """About the share of a JSON text that is in letters other than Latin ones, from 0 to 1."""
    sample = data[:SAMPLE]
    if not sample:
        return 0.0
    escaped = _PER_ESCAPE * sample.count(b"\\u")
    behind = 0 if sample.isascii() else len(sample) - len(sample.decode("utf-8", "ignore"))
    return min(1.0, (_PER_CONTINUATION * behind + escaped) / len(sample))
