"""Superseding: which of the user's rules and tasks still hold after later ones.

A rule that repeats an earlier one is left out. When the user revokes a rule ("forget what I said about X"), allows
something again, or changes it ("Y instead of X"), the earlier rule is removed, but only if it is clear which one is
meant: exactly one earlier unit must be about the same thing. Otherwise both stay, in the order in which they were
said. The revoking sentence stays too, since the revoked rule may appear elsewhere in the view.

A long history may have any number of rules. No more are kept than a ledger could ever show, so that the cost of one
more rule is bounded.
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


# The group `it` is what a unit speaks of. Revoked: any rule about it goes.
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
# Allowed again: a rule that forbids it goes.
_ALLOWED = _compiled(
    r"^(?P<it>.+?)\s+(?:is|are)\s+(?:no longer (?:forbidden|prohibited|off[- ]limits)"
    r"|(?:allowed|fine|okay|ok|permitted) (?:again|now))",
    r"\byou\s+(?:can|may)\s+(?P<it>.+?)\s+(?:again|after all)\b",
    r"(?:又|现在|重新)可以(?P<it>.+?)了?[。！]?$",
)
# No longer required: a rule that asks for it goes.
_RELIEVED = _compiled(
    r"\b(?:you|we)\s+no longer\s+(?:need|have)\s+to\s+(?P<it>.+)",
    r"\b(?:you|we)\s+(?:do not|don['’]?t)\s+(?:need|have)\s+to\s+(?P<it>.+?)\s+(?:any ?more|any longer)",
    r"^(?P<it>.+?)\s+(?:is|are)\s+no longer (?:needed|required|necessary)",
    r"(?:不用|不必|不需要|无需)再(?P<it>.+?)了?[。！]?$",
)
# Changed: something else takes its place.
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
"""The most rules that are kept, and the most wishes and tasks: the earliest of each."""


class _Reading(NamedTuple):
    """A unit as the user said it, with what it is compared by: its normalized words (`plain`) and its terms."""

    unit: str
    plain: str
    terms: frozenset[str]


def merge_rules(rules: Sequence[str], new: Iterable[str]) -> list[str]:
    """The rules that hold after the new ones, in the order in which they were first said."""
    kept = _Kept()
    for unit in rules:
        kept.put(_read(unit))
    for unit in new:
        done = DONE.match(unit)
        if done:
            kept.remove(OPEN + unit[done.end() :])
            continue
        reading = _read(unit)
        kept.remove(_superseded(reading, kept))
        kept.put(reading)
    return [each.unit for each in kept]


class _Kept:
    """The units that hold, in order, each wording once: at most `MOST` weak ones and `MOST` others."""

    def __init__(self) -> None:
        self._forms: dict[str, _Reading] = {}
        self._plain: dict[str, str] = {}
        self._room = {True: MOST, False: MOST}

    def __iter__(self) -> Iterator[_Reading]:
        return iter(self._forms.values())

    def put(self, reading: _Reading) -> None:
        """Adds a unit, if its wording is new and there is room for its kind."""
        weak = is_weak(reading.unit)
        if reading.plain not in self._forms and self._room[weak]:
            self._forms[reading.plain] = reading
            self._plain[reading.unit] = reading.plain
            self._room[weak] -= 1

    def remove(self, unit: str | None) -> None:
        """Removes the unit with this text, if there is one."""
        plain = self._plain.pop(unit, None) if unit is not None else None
        if plain is not None:
            self._room[is_weak(self._forms.pop(plain).unit)] += 1


def _read(unit: str) -> _Reading:
    words = (word.strip(".,!;:?。，！；：？\"'`*") for word in unit.casefold().split())
    return _Reading(unit, " ".join(word for word in words if word and word not in _FILLERS), _terms(unit))


def _terms(text: str) -> frozenset[str]:
    """Words without their plural s, and pairs of characters where a script has no spaces."""
    terms: set[str] = set()
    for word in _TERM.findall(text.casefold()):
        if not _IDEOGRAPH.match(word):
            terms.add(word.removesuffix("s") if len(word) > 3 else word)
        else:
            terms.update(word[i : i + 2] for i in range(max(len(word) - 1, 1)))
    return frozenset(terms - _STOP)


def _superseded(new: _Reading, kept: Iterable[_Reading]) -> str | None:
    """The one earlier unit that a new one revokes or changes; None if there is none, or if it is not clear which."""
    text = " ".join(new.unit.split())  # the patterns would try a run of spaces at every length
    for revision in _REVISIONS:
        it = next((_terms(match["it"]) for each in revision.patterns if (match := each.search(text))), frozenset[str]())
        if not it:
            continue
        least = (_SAME_GRAMS if any(map(_IDEOGRAPH.match, it)) else _SAME) * len(it)
        about = (each for each in kept if each.unit != new.unit and len(it & each.terms) >= least)
        meant = list(islice((each.unit for each in about if _applies(revision, each, it | new.terms)), 2))
        if len(meant) == 1:
            return meant[0]
    return None


def _applies(revision: _Revision, earlier: _Reading, known: frozenset[str]) -> bool:
    forbids = _NEGATED.search(earlier.unit) is not None
    if revision.forbids is not None and forbids is not revision.forbids:
        return False
    other = earlier.terms - known
    return not revision.alone or sum(_GRAM_WEIGHT if _IDEOGRAPH.match(each) else 1.0 for each in other) <= _MOST_BESIDE


class _Revision(NamedTuple):
    """How a unit may revise an earlier one.

    `forbids` says whether the earlier unit must forbid something (None: either way); with `alone`, it may have hardly
    any terms that the new unit does not mention.
    """

    patterns: tuple[re.Pattern[str], ...]
    forbids: bool | None = None
    alone: bool = False


_REVISIONS = (
    _Revision(_REVOKED),
    _Revision(_ALLOWED, forbids=True),
    _Revision(_RELIEVED, forbids=False),
    _Revision(_CHANGED, False, alone=True),
)
