"""Facts: finds identifiers, file paths, error strings and numbers with units in a text, by their form.

Facts are ranked by how often they occur, then by how recently. One message counts a few times at most, so that a log
that repeats itself does not win.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import NamedTuple

MAX_CHARACTERS = 8_000
"""Characters of one text that are read: its beginning and its end, where errors and totals are."""
OLDEST, NEWEST = 100_000, 300_000
"""Characters that are read of the first and of the last of many texts; each counts at most `MAX_CHARACTERS`.

An important fact is repeated or recent, and so a history of any length costs no more than one of this size.
"""
MAX_OF_ONE = 3
"""How often one message may count for the same fact."""
LONGEST = 160
_LONGEST_WORD = 4 * LONGEST
"""Characters of a fact that are kept (`LONGEST`), and of a word that are read."""
_HEAD = MAX_CHARACTERS * 6 // 10


class Fact(NamedTuple):
    """A piece of text, word for word, and how often it occurred."""

    text: str
    times: int = 1


_ERROR = re.compile(
    r"(?:\b\w*(?:Error|Exception)\b(?=\s*[:(\[])|\b(?:error|fatal|panic)(?:\[\w+\])?:|\bFAILED\b"
    r"|\bexit (?:code|status)\b|(?:错误|异常|失败)[:：]).*",
)
_SUFFIX = (
    r"(?:py|pyi|js|jsx|mjs|ts|tsx|java|go|rs|c|h|cc|cpp|hpp|cs|rb|php|swift|kt|scala|sh|ps1|sql|html?|css|scss|vue|md|rst"
    r"|txt|json|ya?ml|toml|ini|cfg|conf|env|lock|xml|csv|tsv|log|ipynb|pdf|docx?|xlsx?|png|jpe?g|svg|gz|zip|tar|proto|tf)"
)
_UNIT = (
    r"(?:(?:%|‰|°[CF]|ms|µs|us|ns|s|sec|seconds?|min|minutes?|h|hours?|days?|weeks?|months?|years?|[KMGT]i?B|bytes?|px|pt|mm"
    r"|cm|m|km|kg|g|mg|lb|ml|l|V|W|kW|kWh|[kMG]?Hz|rpm|fps|tokens?|lines?|rows?|USD|EUR|GBP|CNY|RMB|JPY)(?![\w-])"
    r"|(?:元|美元|块|万|亿|个|条|次|天|小时|分钟|秒|周|个月|年|米|公里|公斤|度))"
)
_EXACT = re.compile(
    r"https?://[^\s<>\"'`)\]，。；、]+"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    rf"|(?:[A-Za-z]:\\|~?/|\.{{1,2}}/)?(?:[\w.@+-]+[/\\])*[\w@+-][\w.@+-]*\.{_SUFFIX}(?::\d+)?\b"
    r"|(?:~|\.{1,2})?/(?:[\w.@+-]+/)+[\w.@+-]*\w"
    r"|\b[\w.@+-]+/(?:[\w.@+-]+/)+[\w.@+-]*\w"
    r"|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2})?)?\b"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|\bv?\d+\.\d+\.\d+[\w.-]*\b"
    r"|[$€£¥]\d[\d,.]*\d?(?:k|m|bn)?"
    rf"|(?<![\w.])\d[\d,.]*{_UNIT}"
    r"|#\d{2,7}\b"
    r"|\b[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*[-_]\d[\w-]*\b"
    r"|\b[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+\b"
    r"|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b|\b(?:[A-Z][a-z0-9]+){2,}\b"
    r"|\b(?=\w*\d)(?=\w*[A-Za-z])[A-Za-z0-9]{5,64}\b"
    r"|\b\d{5,}\b",
    re.ASCII,
)
# A number and its unit with a space between them.
_APART = re.compile(rf"(?<![\w.])\d[\d,.]{{0,30}}+\s{_UNIT}")
_MAY_FAIL = re.compile(r"rror|xcept|fatal|panic|FAIL|exit |[误常败]")
_TRAILING = ".,;:!?、，。；：！？"


def find_facts(text: str) -> Iterator[str]:
    """The facts in a text, each as often as it occurs; an error extends to the end of its line."""
    for line in _both_ends(text).splitlines():
        error = _MAY_FAIL.search(line) and _ERROR.search(line)
        if error:
            yield error.group().strip()[:LONGEST]
        for word in line.split():
            yield from _in_word(word[:_LONGEST_WORD])
        yield from (each.group() for each in _APART.finditer(line))


def _both_ends(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:_HEAD]}\n{text[_HEAD - MAX_CHARACTERS :]}"


def _is_plain(word: str) -> bool:
    """Whether a word is an ordinary word or a lone sign. Most are, and they need no closer look."""
    bare = word.rstrip(_TRAILING)
    return len(bare) < 2 or (bare.isalpha() and (bare[1:].islower() or bare.isupper()))


@lru_cache(maxsize=8_192)
def _in_word(word: str) -> tuple[str, ...]:
    """The facts in one word, as separated by spaces. Cached, because the same words come again and again."""
    if _is_plain(word):
        return ()
    matches = (each.group().rstrip(_TRAILING) for each in _EXACT.finditer(word))
    return tuple(each for each in matches if 1 < len(each) <= LONGEST)


def worth_reading(lengths: Sequence[int]) -> list[int]:
    """Which of many texts are read, given their lengths in characters: their indices, in order."""
    sizes = [min(length, MAX_CHARACTERS) for length in lengths]
    first = _within(sizes, OLDEST)
    last = _within(reversed(sizes[first:]), NEWEST)
    return [*range(first), *range(len(sizes) - last, len(sizes))]


def _within(sizes: Iterable[int], room: int) -> int:
    """How many of the sizes fit into `room`, one after the other."""
    return sum(1 for _ in takewhile(room.__ge__, accumulate(sizes)))


def rank_facts(earlier: Sequence[Fact], texts: Iterable[str]) -> list[Fact]:
    """The facts of `earlier` (best first) and of later texts: most frequent first, then most recent first."""
    times = {fact.text: fact.times for fact in earlier}
    # Earlier facts count as older than all texts, and keep their order among themselves.
    last = {fact.text: (0, -place) for place, fact in enumerate(earlier)}
    for index, text in enumerate(texts, start=1):
        here: dict[str, int] = {}
        for place, found in enumerate(find_facts(text)):
            here[found] = min(here.get(found, 0) + 1, MAX_OF_ONE)
            last[found] = (index, place)
        for found, count in here.items():
            times[found] = times.get(found, 0) + count
    order = sorted(times, key=lambda each: (times[each], last[each]), reverse=True)
    return [Fact(each, times[each]) for each in order]
