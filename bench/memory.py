"""What memory costs: milliseconds of one search, and of adding one message, by the number of messages.

Messages are built from a fixed vocabulary with the lengths and the skew of words that chats have; a query has six to
ten words that stand in one of them, as a user's question does. All queries of a row are searched once; shown are the
median and the slowest one in twenty.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from time import thread_time
from typing import Any

from strategies.core.messages import Role
from strategies.memory.passages import Entry, text_entries
from strategies.memory.ranking import Index

SIZES = (500, 2_000, 20_000)
TARGET = {2_000: 5.0}
"""Milliseconds that the median search may take, by messages."""
QUERIES = 200
_WORDS = 4_000
_SIGNS = 1_500
_LETTERS = "aeioubcdfghklmnprst"
_FIRST_SIGN = 0x4E00


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement in milliseconds; `slow` is the 95th percentile, `adding` is for one message."""

    language: str
    messages: int
    search: float
    slow: float
    adding: float


def measure(sizes: Sequence[int] = SIZES, queries: int = QUERIES) -> list[Row]:
    """All rows; takes about a minute."""
    return [
        _row(language, write, size, queries)
        for language, write in (("English", english), ("Chinese", chinese))
        for size in sizes
    ]


def _row(language: str, write: Callable[[Random, int], str], size: int, queries: int) -> Row:
    random = Random(size)
    said = [write(random, random.choice((4, 8, 12, 20, 40))) for _ in range(size)]
    entries = [entry for place, text in enumerate(said) for entry in _entries(text, place)]
    index = Index()
    adding = _milliseconds(lambda: index.add(entries)) / size
    gc.collect()
    times = sorted(_milliseconds(_searching(index, asked(random, language, said))) for _ in range(queries))
    return Row(language, size, median(times), times[len(times) * 95 // 100], adding)


def _entries(text: str, place: int) -> list[Entry]:
    return text_entries(str(place), (Role.USER, Role.ASSISTANT)[place % 2], text, place)


def _searching(index: Index, query: str) -> Callable[[], object]:
    return lambda: index.search(query)


def _milliseconds(work: Callable[[], object]) -> float:
    started = thread_time()
    work()
    return (thread_time() - started) * 1_000


def asked(random: Random, language: str, said: Sequence[str]) -> str:
    """A question in words of one of the messages."""
    text = random.choice(said)
    if language == "Chinese":
        start = random.randrange(max(len(text) - 12, 1))
        return f"之前说的{text[start : start + 12]}是什么？"
    words = text.split()
    return "what did you say about " + " ".join(random.sample(words, min(len(words), random.randint(6, 10))))


def english(random: Random, words: int) -> str:
    """Words of which few are frequent and many rare."""
    return " ".join(_word(int(_WORDS * random.random() ** 3)) for _ in range(words))


def chinese(random: Random, words: int) -> str:
    """Characters likewise, two for a word, without spaces."""
    return "".join(chr(_FIRST_SIGN + int(_SIGNS * random.random() ** 3)) for _ in range(2 * words))


def _word(number: int) -> str:
    letters = ""
    while number or len(letters) < 4:
        number, letter = divmod(number, len(_LETTERS))
        letters += _LETTERS[letter]
    return letters


def markdown(rows: Sequence[Row]) -> str:
    """One table."""
    lines = [["messages", "language", "search", "95 %", "adding one", "target"], ["---:", "---", *["---:"] * 4]]
    for row in rows:
        times = (f"{row.search:.1f}", f"{row.slow:.1f}", f"{row.adding:.2f}")
        lines.append([f"{row.messages:,}", row.language, *times, verdict(row)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def verdict(row: Row) -> str:
    """`met` or `missed` where there is a target, else "-"."""
    target = TARGET.get(row.messages)
    if target is None:
        return "-"
    return "met" if row.search < target else "missed"


def document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [asdict(row) for row in rows]
