"""Which of the user's rules and tasks still hold when later ones have come.

What was said already is left out. What the user revokes ("forget what I said about X"), allows again, or changes ("Y
instead of X") goes, but only where it is clear which one is meant: where exactly one earlier unit is about the same
thing. Else both stay, in the order in which they were said. What revokes stays too, for the revoked one may stand
elsewhere in the view.

A long history may have any number of rules. No more are held beside each other than a ledger could ever show, so that
what one more costs does not grow with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from strategies.core.rules import DONE, OPEN, is_weak

_I = re.IGNORECASE
_SAID = r"(?:what|everything|all|anything) I (?:said|told you|wrote|asked|mentioned)(?: (?:earlier|before))?"
_RULE = r"(?:rule|instruction|request|constraint|requirement|restriction|ban|limit)s?"
_TAKE_BACK = r"\b(?:forget|disregard|ignore|scrap|drop|cancel|revoke|withdraw|lift|never ?mind)"
_ENDS = r"(?=\s*[,;.!，；。！]|\s+(?:from now|in|for|please|when|and)\b|$)"


def _compiled(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, _I) for pattern in patterns)


# `it` is what a unit speaks of. Any rule about it goes.
_REVOKED = _compiled(
    rf"{_TAKE_BACK}\s+(?:about\s+)?(?:{_SAID}|(?:my|the|that|our)\s+(?:\w+\s+)?{_RULE})"
    r"\s+(?:about|on|regarding|concerning|for|with|against)\s+(?P<it>.+)",
    rf"{_TAKE_BACK}\s+(?:my|the|that)\s+(?P<it>.+?)\s+{_RULE}\b",
    rf"\b{_RULE}\s+(?:about|on|regarding|for|against)\s+(?P<it>.+?)\s+(?:no longer|does not|doesn['’]t)\b",
    r"(?:忘掉|忘记|忽略|取消|撤销)我?(?:之前|刚才|前面|以前)?(?:说过?的|提的|定的|关于|有关)+"
    r"(?P<it>.+?)(?:的?(?:要求|规则|限制|规定|事|话|约束))?[。！]?$",
    r"(?:忘掉|忽略|取消|撤销)(?P<it>.+?)的?(?:要求|规则|限制|规定|约束)",
    r"^(?:关于)?(?P<it>.+?)的?(?:要求|规则|限制|规定)(?:已?作废|取消|不再适用|不再有效)",
)
# What was forbidden of it is allowed.
_ALLOWED = _compiled(
    r"^(?P<it>.+?)\s+(?:is|are)\s+(?:no longer (?:forbidden|prohibited|off[- ]limits)"
    r"|(?:allowed|fine|okay|ok|permitted) (?:again|now))",
    r"\byou\s+(?:can|may)\s+(?P<it>.+?)\s+(?:again|after all)\b",
    r"(?:又|现在|重新)可以(?P<it>.+?)了?[。！]?$",
)
# What was asked for of it is not any more.
_RELIEVED = _compiled(
    r"\b(?:you|we)\s+no longer\s+(?:need|have)\s+to\s+(?P<it>.+)",
    r"\b(?:you|we)\s+(?:do not|don['’]?t)\s+(?:need|have)\s+to\s+(?P<it>.+?)\s+(?:any ?more|any longer)",
    r"^(?P<it>.+?)\s+(?:is|are)\s+no longer (?:needed|required|necessary)",
    r"(?:不用|不必|不需要|无需)再(?P<it>.+?)了?[。！]?$",
)
# Something else takes its place.
_CHANGED = _compiled(
    r"\binstead of\s+(?:using\s+)?(?P<it>.+?)(?=\s+(?:use|write)\b|\s*[,;.!]|\s+from now|$)",
    rf"\bno longer\s+(?:use|using|want|do|write|reply in)?\s*(?P<it>.+?){_ENDS}",
    r"\b(?:switch|change|move|migrate)\s+(?:over\s+)?from\s+(?P<it>.+?)\s+to\b",
    r"\breplace\s+(?P<it>.+?)\s+(?:by|with)\b",
    r"\b(?:do not|don['’]?t|stop)\s+(?:use|using|write|writing)\s+(?P<it>.+?)\s+any ?(?:more|longer)",
    rf"\bstop\s+(?:using\s+)?(?P<it>.+?){_ENDS}",
    r"代替(?P<it>[^，。；]+)",
    r"[把将从](?P<it>[^，。；]+?)(?:换成|改成|改为|替换)",
    r"不再(?:使用|用)?(?P<it>[^，。；]+)",
    r"改用[^，。；]+[，,；]?\s*(?:不要|别)(?:再)?用(?P<it>[^，。；]+)",
)
_NEGATED = re.compile(r"\bnever\b|\bnot\b|n['’]t\b|\bdont\b|\bavoid\b|\bno\b|不|别|勿|禁止|严禁|避免", _I)
_TERM = re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff]+(?:[._/-][^\W_]+)*|[\u3040-\u30ff\u3400-\u9fff]+")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_STOP = frozenset(
    (
        *("a", "an", "the", "and", "or", "but", "if", "of", "to", "in", "on", "at", "by", "for", "with", "as", "from"),
        *("i", "you", "we", "it", "me", "my", "your", "our", "this", "that", "these", "those", "is", "are", "be"),
        *("please", "also", "again", "any", "more", "anymore", "so", "then", "now", "just", "use", "using", "used"),
        *("do", "does", "not", "don", "t", "never", "always", "must"),
    )
)
_FILLERS = frozenset(
    (
        *("please", "pls", "remember", "reminder", "again", "also", "and", "ok", "okay", "so", "note", "that"),
        *("as", "i", "said", "once", "more"),
    )
)
_SAME, _SAME_GRAMS = 0.75, 0.6
_MOST_BESIDE, _GRAM_WEIGHT = 1.0, 0.2
MOST = 400
"""Rules that are held beside each other, and wishes and tasks: those that were said first, as where room is short."""


class _Reading(NamedTuple):
    """A unit as the user said it, and what it is compared by: its words in one form, and its terms."""

    unit: str
    plain: str
    terms: frozenset[str]


def merged(rules: Sequence[str], new: Iterable[str]) -> list[str]:
    """The rules that hold after new ones came, in the order in which they were first said."""
    kept = _Kept()
    for unit in rules:
        kept.put(_read(unit))
    for unit in new:
        done = DONE.match(unit)
        if done:
            kept.take(OPEN + unit[done.end() :])
            continue
        reading = _read(unit)
        kept.take(_superseded(reading, kept))
        kept.put(reading)
    return [each.unit for each in kept]


class _Kept:
    """The units that hold, in order, each form of words once; at most `MOST` that are weak and `MOST` that are not."""

    def __init__(self) -> None:
        self._forms: dict[str, _Reading] = {}
        self._plain: dict[str, str] = {}
        self._room = {True: MOST, False: MOST}

    def __iter__(self) -> Iterator[_Reading]:
        return iter(self._forms.values())

    def put(self, reading: _Reading) -> None:
        """Adds a unit, where it says something new and there is room for its kind."""
        weak = is_weak(reading.unit)
        if reading.plain not in self._forms and self._room[weak]:
            self._forms[reading.plain] = reading
            self._plain[reading.unit] = reading.plain
            self._room[weak] -= 1

    def take(self, unit: str | None) -> None:
        """Takes out the unit with these words, if there is one."""
        plain = self._plain.pop(unit, None) if unit is not None else None
        if plain is not None:
            self._room[is_weak(self._forms.pop(plain).unit)] += 1


def _read(unit: str) -> _Reading:
    words = (word.strip(".,!;:?。，！；：？\"'`*") for word in unit.casefold().split())
    return _Reading(unit, " ".join(word for word in words if word and word not in _FILLERS), _terms(unit))


def _terms(text: str) -> frozenset[str]:
    """Words in one form, and pairs of characters where a script has no spaces."""
    found: set[str] = set()
    for word in _TERM.findall(text.casefold()):
        if not _IDEOGRAPH.match(word):
            found.add(word.removesuffix("s") if len(word) > 3 else word)
        else:
            found.update(word[i : i + 2] for i in range(max(len(word) - 1, 1)))
    return frozenset(found - _STOP)


def _superseded(new: _Reading, kept: Iterable[_Reading]) -> str | None:
    """The one earlier unit that a new one revokes or changes; None where there is none, or where it is not clear."""
    told = " ".join(new.unit.split())  # runs of spaces would be tried at every length
    for way in _WAYS:
        it = next((_terms(found["it"]) for each in way.patterns if (found := each.search(told))), frozenset[str]())
        if not it:
            continue
        least = (_SAME_GRAMS if any(map(_IDEOGRAPH.match, it)) else _SAME) * len(it)
        about = (each for each in kept if each.unit != new.unit and len(it & each.terms) >= least)
        meant = list(islice((each.unit for each in about if _takes(way, each, it | new.terms)), 2))
        if len(meant) == 1:
            return meant[0]
    return None


def _takes(way: _Way, earlier: _Reading, known: frozenset[str]) -> bool:
    forbids = _NEGATED.search(earlier.unit) is not None
    if way.forbids is not None and forbids is not way.forbids:
        return False
    beside = earlier.terms - known
    return not way.alone or sum(_GRAM_WEIGHT if _IDEOGRAPH.match(each) else 1.0 for each in beside) <= _MOST_BESIDE


class _Way(NamedTuple):
    """How a unit speaks of an earlier one: whether that forbids something, and may ask for little else besides."""

    patterns: tuple[re.Pattern[str], ...]
    forbids: bool | None = None
    alone: bool = False


_WAYS = (
    _Way(_REVOKED),
    _Way(_ALLOWED, forbids=True),
    _Way(_RELIEVED, forbids=False),
    _Way(_CHANGED, False, alone=True),
)
