"""Terms: what a text is compared by, in any language: word stems, and n-grams in scripts without spaces.

Words are folded (width, case, accents). English words lose their endings, because "where did she camp" asks about "we
went camping". What looks like an identifier (`src/app.py`, `max_tokens`, `parseHeader`) is found as a whole and by its
parts. Runs of Chinese, Japanese or Korean characters become n-grams of up to four characters. Single characters are
kept, because some nouns have only one, but count for little in a query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import add

from strategies.core.parsing import fold_characters

TokenTerms = Callable[[str], Sequence[str]]

CJK = "\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
LONGEST_GRAM = 4
_WIDE = re.compile(f"[{CJK}]")

_PIECE = rf"[^\W_{CJK}]+"
_TOKEN = re.compile(rf"[{CJK}]+|{_PIECE}(?:[._/:@\\-]+{_PIECE})*")
_PIECES = re.compile(_PIECE)
_RUN = re.compile(rf"[{CJK}]{{2,}}")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENGLISH = re.compile(r"[a-z]+")
_VOWEL = re.compile(r"[aeiouy]")

_ENGLISH_STOP = (
    "a an the and or but if of to in on at by for with from as is are was were be been being do does did doing done "
    "have has had having i you he she it we they me him her us them my your his its our their this that these those "
    "there here what which who whom whose when where why how not no nor so than then too very can could will would "
    "shall should may might must about into over under again once just also am because while during before after up "
    "down out off both each few more most other some such only own same s t d ll m o re ve y don any all said say "
    "says tell told ask asked anything something"
)
_CHINESE_STOP = "的了吗呢啊吧嘛是我你您他她它们这那有在和也都就不很请好什么怎哪里给为与及或个把被让啦呀"
STOP = frozenset((*_ENGLISH_STOP.split(), *_CHINESE_STOP))


def terms(text: str, remembered: TokenTerms | None = None) -> list[str]:
    """The terms of a text, each as often as it occurs; stop words are left out.

    `remembered` is `terms_of_token` with a memory, for many texts of one owner.
    """
    return [*chain.from_iterable(map(remembered or terms_of_token, _TOKEN.findall(fold_characters(text))))]


def distinct(text: str) -> set[str]:
    """The distinct word stems and character pairs of a text. To recognise a text, pairs do as well as all n-grams."""
    folded = fold_characters(text)
    words = (word.casefold() for piece in set(_PIECES.findall(folded)) for word in _HUMP.split(piece))
    pairs = (pair for run in set(_RUN.findall(folded)) for pair in map(add, run, run[1:]))
    return {*(stem(word) for word in words if word not in STOP), *(pair for pair in pairs if not STOP.issuperset(pair))}


def informative_share(term: str, single: float) -> float:
    """How informative a term is, up to 1: for an n-gram, the share of its characters that are not stop words.

    A single character counts `single`.
    """
    if term.isascii() or not _WIDE.match(term):
        return 1.0
    return single if len(term) == 1 else sum(char not in STOP for char in term) / len(term)


def width(text: str) -> int:
    """About four times the tokens of a text: its characters, with each one of a script without spaces as three."""
    return len(text) + 2 * len(_WIDE.findall(text))


def terms_of_token(token: str) -> tuple[str, ...]:
    if _WIDE.match(token):
        return (*_grams(token),)
    words = [piece.casefold() for part in _PIECES.findall(token) for piece in _HUMP.split(part)]
    whole = (token.casefold(),) if len(words) > 1 else ()
    return (*whole, *(stem(word) for word in words if word not in STOP))


def _grams(run: str) -> Iterator[str]:
    """Yields the n-grams of a run, except those that have only stop words, such as 是什么."""
    for size in range(1, LONGEST_GRAM + 1):
        grams = (run[i : i + size] for i in range(len(run) - size + 1))
        yield from (gram for gram in grams if not STOP.issuperset(gram))


_ENDINGS = ("ation", "ion", "ment", "ness", "ly", "er", "or")
_LONGEST_WORD = 64  # letters of the longest word that is stemmed; anything longer is not a natural word


def stem(word: str) -> str:
    """A word without its English ending. Short words, other alphabets and whatever is not a word stay unchanged."""
    if not 3 < len(word) <= _LONGEST_WORD or not _ENGLISH.fullmatch(word):
        return word
    word = _bare_form(_singular(word))
    ending = next((ending for ending in _ENDINGS if word.endswith(ending) and len(word) - len(ending) >= 4), "")
    word = word.removesuffix(ending)
    if len(word) > 3 and word.endswith("e"):
        return word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("es") and len(word) > 4 and word[-3] in "sxzh":
        return word[:-2]
    return word if word.endswith(("ss", "us", "is")) else word.removesuffix("s")


def _bare_form(word: str) -> str:
    """The word without -ing or -ed, and without the consonant doubled before it: camping, camp; planned, plan."""
    ending = next((ending for ending in ("ing", "ed") if word.endswith(ending)), "")
    root = word.removesuffix(ending)
    if not ending or len(root) < 3 or not _VOWEL.search(root):
        return word
    doubled = len(root) > 3 and root[-1] == root[-2] and root[-1] not in "lsz"
    return root[:-1] if doubled else root
