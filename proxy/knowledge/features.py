"""Features: the amounts of each kind of text that the tokens of a request are made of. No I/O.

Another vocabulary costs more for one kind of text and less for another, so our own count is split by kind. Finding the
kinds of a message takes a fraction of its bytes: at most a few kilobytes of each are looked at. Media, such as
pictures, are counted apart: servers price them in ways that have nothing to do with text, many by the piece.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add, mul, sub
from typing import NamedTuple

from strategies.core.messages import Message, Role

SAMPLE = 2_048  # bytes of a message that are looked at
_PER_CONTINUATION = 1.5  # bytes of a character of three bytes, for each of its bytes after the first
_PER_ESCAPE = 6  # bytes of a character that is written as \uXXXX
# In each message that has a part of media, in any dialect.
_MEDIA = (b'"image', b'"input_', b'"audio', b'"video', b'"file', b'"document')
_FRAME, _CHARS_PER_TOKEN = 4, 4  # of the text next to media, whose tokens are estimated


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
    media: float = 0.0
    """The number of pictures, sounds and files."""
    media_tokens: float = 0.0
    """The tokens that we count for them."""

    @property
    def own_text(self) -> float:
        """Tokens of text by our own count."""
        return self.words + self.code + self.non_latin + self.outside

    @property
    def own(self) -> float:
        """Tokens by our own count."""
        return self.words + self.code + self.non_latin + self.outside + self.media_tokens

    def plus(self, other: Features) -> Features:
        """The amounts of both."""
        return Features(*map(add, self, other))

    def minus(self, other: Features) -> Features:
        """The amounts that the other does not have."""
        return Features(*map(sub, self, other))

    def at(self, prices: Features) -> float:
        """The cost of these amounts, in tokens of the upstream."""
        cost: float = sum(map(mul, self, prices))
        return cost

    @property
    def hidden(self) -> int:
        """Of prices: the maximum number of tokens that the upstream adds to what is in a request."""
        return max(round(self.requests + max(self.offers, 0)), 0)


EVEN = Features(words=1.0, code=1.0, non_latin=1.0, outside=1.0, media_tokens=1.0)
"""The prices when nothing has been learned: a token is a token."""


class _Kinds(NamedTuple):
    """What was found in a message."""

    wide: float
    """The share of its text that is in other than Latin letters."""
    media: int = 0
    """The number of its parts that are no text."""
    text_tokens: int = 0
    """About the tokens of its other parts, if it has such parts."""


def of_messages(messages: Iterable[Message]) -> Features:
    number = media = 0
    words = code = wide = media_tokens = 0.0
    for message in messages:
        number += 1
        kinds = _kinds.get(message.digest) or _look_at(message)
        of_media = max(message.tokens - kinds.text_tokens, 0) if kinds.media else 0
        media += kinds.media
        media_tokens += of_media
        text = message.tokens - of_media
        wide += text * kinds.wide
        if message.role is Role.TOOL or message.calls:
            code += text * (1 - kinds.wide)
        else:
            words += text * (1 - kinds.wide)
    return Features(0.0, 0.0, number, words, code, wide, 0.0, media, media_tokens)


_MAX_KINDS = 8_000
_kinds: dict[bytes, _Kinds] = {}
"""The kinds in messages by digest: a history comes again with every request, and is looked at once."""


def _look_at(message: Message) -> _Kinds:
    """Finds the kinds in a message that is not known yet; a message of our own has no digest to remember it by."""
    media = message.dialect.media(message.body) if any(mark in message.data for mark in _MEDIA) else 0
    text_tokens = _FRAME + len(message.text) // _CHARS_PER_TOKEN if media else 0
    kinds = _Kinds(non_latin_share(message.data), media, text_tokens)
    if message.digest:
        if len(_kinds) >= _MAX_KINDS:
            _kinds.clear()
        _kinds[message.digest] = kinds
    return kinds


def non_latin_share(data: bytes) -> float:
    """The approximate share of a JSON text that is in other than Latin letters, from 0 to 1."""
    sample = data[:SAMPLE]
    if not sample:
        return 0.0
    escaped = _PER_ESCAPE * sample.count(b"\\u")
    continuations = 0 if sample.isascii() else len(sample) - len(sample.decode("utf-8", "ignore"))
    return min(1.0, (_PER_CONTINUATION * continuations + escaped) / len(sample))
