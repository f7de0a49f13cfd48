"""Counts long or hostile text in bounded time, without the tokenizer's panics.

Two facts about tiktoken shape this module. A run of about a million blanks overflows the regex stack and
ends in a `PanicException`, which derives from BaseException, so that `except Exception` lets it through.
And what a client sends may be of any length. So text is cut into pieces of 64k characters, where both
encodings split it anyway: before a blank that precedes a letter, or between a newline and a letter. On
real text the sum is exactly the count of the whole; unbroken text (base64) is cut hard and may be off by
one or two tokens a cut. Beyond 2M characters evenly spaced pieces are counted and the rest is
extrapolated: the worst text costs about 2 s of CPU and never more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

CHUNK_CHARS = 65_536
SEARCH_CHARS = 2_048
"""How far back from the end of a chunk a harmless cut is looked for."""
SAMPLE_CHARS = 2_097_152
"""Above this many characters a text is sampled."""

_CUT = re.compile(r"(?<=\S)(?= [^\W\d_])|(?<=\n)(?=[^\W\d_])")


def count(text: str, encode: Callable[[str], int], estimate: Callable[[str], int]) -> int:
    """Tokens of `text` by `encode`, a function from a chunk to its tokens.

    A chunk on which the tokenizer panics is counted by `estimate`. Exact up to SAMPLE_CHARS, see above.
    """
    if len(text) > SAMPLE_CHARS:
        sample = _sample(text)
        return count(sample, encode, estimate) * len(text) // len(sample)
    return sum(_guarded(chunk, encode, estimate) for chunk in chunks(text))


def chunks(text: str) -> Iterator[str]:
    """The text in order, in pieces of at most CHUNK_CHARS characters."""
    start = 0
    while len(text) - start > CHUNK_CHARS:
        end = _cut(text, start + CHUNK_CHARS)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(text: str, limit: int) -> int:
    """The last harmless cut at or shortly before `limit`, else `limit` itself."""
    last = limit
    for match in _CUT.finditer(text, limit - SEARCH_CHARS, limit + 2):
        if match.start() <= limit:
            last = match.start()
    return last


def _sample(text: str) -> str:
    """Evenly spaced chunks, SAMPLE_CHARS together, the beginning of the text included."""
    pieces = SAMPLE_CHARS // CHUNK_CHARS
    stride = len(text) // pieces
    return "".join(text[at : at + CHUNK_CHARS] for at in range(0, stride * pieces, stride))


def _guarded(chunk: str, encode: Callable[[str], int], estimate: Callable[[str], int]) -> int:
    try:
        return encode(chunk)
    except BaseException as error:
        # pyo3's PanicException cannot be imported; interrupts and everything else go on.
        if type(error).__name__ != "PanicException":
            raise
        return estimate(chunk)
