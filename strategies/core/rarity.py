"""Rarity: how much of a text could not be guessed from the rest of its conversation.

A term that stands in many messages says little, one that stands in a single message says much: log(N / df), in any
language and without a list of words. A text's score is the mean over its terms, each of which weighs as much as it is
rare, so that common words count for little. A text of few terms is drawn towards zero, because two rare words may be
chance: so greetings and small talk sink.

A term is a run of letters; in scripts without spaces, a pair of characters. Digits and very long runs are none.
Scores are integers: the same messages give the same scores in every process, whatever the order of a set.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from itertools import chain, pairwise
from math import log
from operator import mul
from zlib import crc32

from strategies.core.terms import CJK

HIGHEST = 1_000
Terms = array  # of numbers, each of which stands for a term

_UNSPACED = f"{CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # and Thai, Lao, Burmese, Khmer
_RUN = re.compile(rf"[{_UNSPACED}]{{2,}}|[^\W\d_{_UNSPACED}]{{2,}}")
_LONGEST = 40  # letters of a term

# In ASCII a letter becomes a small one, and all else a space.
_SMALL = bytes(ord(chr(byte).lower()) if byte < 128 and chr(byte).isalpha() else ord(" ") for byte in range(256))
_LETTERS = {bytes((byte,)) for byte in b"abcdefghijklmnopqrstuvwxyz"}

_DOUBT = 1_000  # the weight of a term without rarity that each text is taken to have besides its own


def terms_of(text: str) -> Terms[int]:
    """The terms of a text, each as a number, which is the same in every process."""
    if text.isascii():  # as below, many times faster
        words = set(text.encode().translate(_SMALL).split()) - _LETTERS
        if len(max(words, key=len, default=b"")) > _LONGEST:
            words = {word for word in words if len(word) <= _LONGEST}
        return array("I", sorted(map(crc32, words)))
    terms: set[str] = set()
    for run in set(_RUN.findall(text.casefold())):
        if run[0] > "\u0dff":
            terms.update(map("".join, pairwise(run)))
        elif len(run) <= _LONGEST:
            terms.add(run)
    return array("I", sorted([crc32(term.encode("utf-8", "surrogatepass")) for term in terms]))


class Rarity(dict[int, int]):
    """The rarity of terms among messages, given by the terms of each: the weight of each term, found when asked for."""

    def __init__(self, messages: Iterable[Terms[int]]) -> None:
        listed = list(messages)
        number, self._found = max(len(listed), 1) + 1, Counter(chain.from_iterable(listed))
        self._weights = [round(HIGHEST * log(number / max(found, 1)) / log(number)) for found in range(number)]

    def __missing__(self, term: int) -> int:
        weight = self[term] = self._weights[self._found.get(term, 0)]
        return weight

    def score(self, terms: Terms[int]) -> int:
        """From 0, for a text whose terms stand everywhere or that has none, to nearly `HIGHEST`."""
        weights = list(map(self.__getitem__, terms))
        squares: int = sum(map(mul, weights, weights))
        return squares // (sum(weights) + _DOUBT)
