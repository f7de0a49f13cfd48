"""Names: identifiers, paths, addresses, numbers with units and the like, found in a text by their form.

A bare number says nothing, so it is listed with the words before it, which name it ("port 8080"). Keys of JSON are no
names, wherever they stand; they may name a number ("zip 10001").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set

from strategies.core.terms import CJK

UNIT = (
    r"(?:(?:%|‰|°[CF]|ms|µs|us|ns|s|sec|seconds?|min|minutes?|h|hours?|days?|weeks?|months?|years?|[KMGT]i?B|bytes?|px|pt|mm"
    r"|cm|m|km|kg|g|mg|lb|ml|l|V|W|kW|kWh|[kMG]?Hz|rpm|fps|tokens?|lines?|rows?|USD|EUR|GBP|CNY|RMB|JPY)(?![\w-])"
    r"|(?:元|美元|块|万|亿|个|条|次|天|小时|分钟|秒|周|个月|年|米|公里|公斤|度))"
)
MAX_CHARACTERS = 4_000  # characters of one text that are read: its beginning and its end, where errors and totals are
LONGEST = 160
_LONGEST_WORD = 4 * LONGEST
_HEAD = MAX_CHARACTERS * 6 // 10
_BEFORE, _UNSPACED_BEFORE = 3, 8  # words, or characters of a script without spaces, that name a number

_SUFFIX = (
    r"(?:py|pyi|js|jsx|mjs|ts|tsx|java|go|rs|c|h|cc|cpp|hpp|cs|rb|php|swift|kt|scala|sh|ps1|sql|html?|css|scss|vue|md|rst"
    r"|txt|json|ya?ml|toml|ini|cfg|conf|env|lock|xml|csv|tsv|log|ipynb|pdf|docx?|xlsx?|png|jpe?g|svg|gz|zip|tar|proto|tf)"
)
_EXACT = re.compile(
    r"https?://[^\s<>\"'`)\]，。；、]+"
    r"|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    rf"|(?<![\w.@+-])(?:[A-Za-z]:\\|~?/|\.{{1,2}}/)?(?:[\w.@+-]+[/\\])*\.?[\w@+-][\w.@+-]*\.{_SUFFIX}(?::\d+)?\b"
    r"|(?:~|\.{1,2})?/(?:[\w.@+-]+/)+[\w.@+-]*\w"
    r"|\b[\w.@+-]+/(?:[\w.@+-]+/)+[\w.@+-]*\w"
    r"|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2})?)?\b"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|\bv?\d+\.\d+\.\d+[\w.-]*\b"
    r"|[$€£¥]\d[\d,.]*\d?(?:k|m|bn)?"
    rf"|(?<![\w.])\d[\d,.]*{UNIT}"
    r"|#\d{2,7}\b"
    r"|\b[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*[-_]\d[\w-]*\b"
    r"|\b[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+\b"
    r"|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b|\b(?:[A-Z][a-z0-9]+){2,}\b"
    r"|\b(?=\w*\d)(?=\w*[A-Za-z])[A-Za-z0-9]{5,64}\b"
    r"|\b\d{5,}\b",
    re.ASCII,
)
# A number and its unit with a space between them.
_APART = re.compile(rf"(?<![\w.])\d[\d,.]{{0,30}}+\s{UNIT}")
# A plain word is passed over at once; of most texts all are.
_MAY_NAME = re.compile(r"(?<!\S)(?![A-Z]?[a-z]*+[.,;:!?]?(?!\S))\S*?(?:[\d_@/\\#$€£¥]|[a-z][A-Z]|\w\.\w)\S*")
_BARE = re.compile(rf"[\d.,:/#$€£¥%TZ +-]*(?:k|bn|{UNIT})?")
_MEASURE = re.compile(rf"(?:^|(?<=\s))\d[\d,.]*\s?{UNIT}$")
_UNSPACED = re.compile(f"[{CJK}]")
_UNSPACED_END = re.compile(f"[{CJK}]+$")
_DIGIT, _APART_DIGIT = re.compile(r"\d"), re.compile(r"\d\s")
_KEY = re.compile(r"\\{0,8}[\"']([\w $@.-]{1,80}?)\\{0,8}[\"']\s{0,4}:\s{0,4}(?=(\d)?)")
_ESCAPED = re.compile(r"\\{1,8}([nrt\"'])")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_TRAILING = ".,;:!?、，。；：！？"
_MARKS = "\"'`*_()[]{}<>"


def without_keys(text: str) -> str:
    """A text whose JSON, escaped or not, has only its values; of a number's key the words stay."""
    if '":' not in text and "':" not in text and '" :' not in text:
        return text
    bare = _KEY.sub(lambda match: f" {match[1].replace('_', ' ')} " if match[2] else " ", text)
    return _ESCAPED.sub(lambda match: match[1] if match[1] in "\"'" else "\n", bare)


def find_names(text: str) -> Iterator[str]:
    """The names and numbers in a text, each as often as it occurs."""
    read = text if len(text) <= MAX_CHARACTERS else f"{text[:_HEAD]}\n{text[_HEAD - MAX_CHARACTERS :]}"
    for line in without_keys(read).splitlines():
        for word in _MAY_NAME.finditer(line):
            for place, name in _in_word(word[0][:_LONGEST_WORD]):
                yield from _named(name, line[: word.start() + place])
        if _APART_DIGIT.search(line):
            for match in _APART.finditer(line):
                yield from _named(match[0], line[: match.start()])


def _named(name: str, before: str) -> Iterator[str]:
    """A name; a bare number only with the words before it."""
    if not _BARE.fullmatch(name):
        yield name
    elif words := _words_before(before):
        yield f"{words}{name}" if _UNSPACED.match(words[-1]) else f"{words} {name}"


def _words_before(text: str) -> str:
    """The last words of a line's beginning, back to a mark that ends a clause or to another name."""
    if unspaced := _UNSPACED_END.search(text[-_UNSPACED_BEFORE:]):
        return unspaced[0]
    words: list[str] = []
    for word in reversed(text[-_LONGEST_WORD:].split()[-_BEFORE:]):
        if word[-1] in _TRAILING or not _LETTERS.search(word) or _MAY_NAME.search(word):
            break
        words.append(word.strip(_MARKS))
    return " ".join(reversed(words))


def is_measure(name: str) -> bool:
    """Whether a name is a number with a unit: it says how much, and identifies nothing."""
    return _MEASURE.search(name) is not None


def has_name(text: str) -> bool:
    """Whether a text has a name, or a number of any kind."""
    return any(_DIGIT.search(word[0]) or _in_word(word[0][:_LONGEST_WORD]) for word in _MAY_NAME.finditer(text))


def _in_word(word: str) -> list[tuple[int, str]]:
    """The names in one word, as separated by spaces, each with its place."""
    found = ((match.start(), match.group().rstrip(_TRAILING)) for match in _EXACT.finditer(word))
    return [(place, name) for place, name in found if 1 < len(name) <= LONGEST]


def ranked_names(messages: Iterable[Sequence[str]], skip: Set[str] = frozenset()) -> list[str]:
    """The names of messages, given oldest first; the last mentioned first, because what was used last is used next."""
    last: dict[str, tuple[int, int]] = {}
    for index, names in enumerate(messages):
        last.update((name, (-index, place)) for place, name in enumerate(names))
    return sorted((name for name in last if name not in skip), key=last.__getitem__)
