"""What memory is compared with: textbook BM25 over whole messages, without anything that this project adds."""

from __future__ import annotations

import math
import re
from collections import Counter as Multiset
from collections.abc import Iterator, Sequence
from functools import cache

K1, B = 1.5, 0.75
_TOKEN = re.compile(r"[a-z0-9]+(?:[._/'-][a-z0-9]+)*|[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]+")


class BM25:
    """BM25 over words, and 2-4 character n-grams where there are no spaces."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Multiset(_terms(text)) for text in texts]
        self._frequencies = Multiset(term for counts in self._counts for term in counts)
        self._lengths = [counts.total() for counts in self._counts]
        self._mean = sum(self._lengths) / len(texts)
        self.ranked = cache(self._ranked)

    def _ranked(self, query: str) -> list[int]:
        """The numbers of the texts that share a term with the query, best first."""
        asked = [(term, self._idf(term)) for term in set(_terms(query)) if term in self._frequencies]
        scores = [sum(self._score(at, term) * idf for term, idf in asked) for at in range(len(self._counts))]
        return sorted((at for at, score in enumerate(scores) if score), key=lambda at: -scores[at])

    def _idf(self, term: str) -> float:
        frequency = self._frequencies[term]
        return math.log(1 + (len(self._counts) - frequency + 0.5) / (frequency + 0.5))

    def _score(self, at: int, term: str) -> float:
        times = self._counts[at].get(term, 0)
        return times * (K1 + 1) / (times + K1 * (1 - B + B * self._lengths[at] / self._mean)) if times else 0.0


def _terms(text: str) -> Iterator[str]:
    for token in _TOKEN.findall(text.lower()):
        if token[0].isascii():
            yield token
        else:
            yield from (token[i : i + size] for size in (2, 3, 4) for i in range(len(token) - size + 1))
