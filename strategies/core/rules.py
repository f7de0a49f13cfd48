"""Rules: finds the user's standing rules and open tasks by cue words, without a model.

The unit is a whole line or sentence of the user, word for word: text is split at line ends and at sentence ends, never
at `;` or `,`. Module `cues` knows by which words a unit is a rule. Questions count only if they ask for something that
lasts; code, quotations and logs do not count at all. Text that looks like one of our own ledgers or records does not
count either: the user has pasted it, or somebody poses as the user.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from strategies.core.cues import is_cued, is_pasted, is_weak
from strategies.core.values import Statements, corrected, correction, statement, states, with_earlier

LONGEST = 600  # characters of the longest sentence that may be a rule; anything longer was pasted
MAX_OF_ONE = 40  # the maximum number of units that one message contributes
MAX_CHARACTERS = 64_000
"""Characters of one message that are read: its beginning and its end. The text between them was pasted."""
OPEN, DONE = "[ ] ", re.compile(r"^\[[xX]\]\s*")  # the beginnings of open and of finished tasks in a list
MAX_RULES = 400  # how many rules are kept, and how many wishes and tasks besides: the earliest of each
_FILLERS = frozenset(
    "please pls remember reminder again also and ok okay so note that as i said once more".split()  # noqa: SIM905
)

# -- units ---------------------------------------------------------------------------------------------------------

_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_BULLET = re.compile(r"\s*(?:(?:[-*+•·–#]+|\(?\d{1,3}[.)]|[a-z][.)])\s+|\(?\d{1,3}[、）]\s*)")
# Each run of dots is matched once, from its first dot; a match from every dot would take quadratic time.
_END = re.compile(r"[。！？]+[”’」』）\"')]*|(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s)")
_OWN_MARK = r"\[(ledger|condensed history)\]"
_OWN_FORM = re.compile(_OWN_MARK, re.IGNORECASE)
_OWN_HEADING = re.compile(rf"[\s>#*_-]*{_OWN_MARK}", re.IGNORECASE)
_ABBREVIATED = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|approx|mr|mrs|ms|dr|prof|fig)|(?:^|\s)[A-Z])\.$", re.IGNORECASE)
_WORD = re.compile(r"\w")
# A line of a numbered listing, `12:    return`, or a member of a JSON document, `"name": "x",`.
_PASTED = re.compile(r"\s*(?:\d+:(?:\s{2}|\s*$)|\"[^\"]*\"\s*:(?:\s|$))")


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of a text without bullets, each with whether it had one. Quotations, listings and JSON are left out."""
    for line in text.splitlines():
        if not (line.lstrip().startswith(">") or _PASTED.match(line)):
            bullet = _BULLET.match(line)
            yield (line[bullet.end() :] if bullet else line).strip(), bullet is not None


def _sentences(line: str) -> Iterator[str]:
    start = 0
    for match in _END.finditer(line):
        if _ABBREVIATED.search(line[max(start, match.end() - 8) : match.end()]):
            continue
        yield line[start : match.end()].strip()
        start = match.end()
    if start < len(line):
        yield line[start:].strip()


def _without_own_form(text: str) -> str:
    """The text without ledgers (a heading and its list) and without records, which end with their ledger."""
    if not _OWN_FORM.search(text):
        return text
    lines: list[str] = []
    form = ""
    for line in text.splitlines():
        if own := _OWN_HEADING.match(line):
            form = own[1].lower()
        elif form == "ledger" and (said := line.strip()) and said[0] != ">" and not _BULLET.match(line):
            form = ""
        if not form:
            lines.append(line)
    return "\n".join(lines)


# -- in a message --------------------------------------------------------------------------------------------------

_LIST = re.compile(r"[:：]$")
_ABOUT_RULES = re.compile(
    r"\b(?:rules?|constraints?|requirements?|guidelines?|conventions?|preferences?|decisions?|to[- ]?dos?)\b"
    r"|规则|约束|要求|规范|约定|偏好|注意事项|待办",
    re.IGNORECASE,
)


def find_rules(text: str) -> list[str]:
    """The rules and tasks in one user message, in order, including finished tasks (`[x]`)."""
    return [rule for part in _parts_read(text) for rule in _rules_in(part)][:MAX_OF_ONE]


def units(text: str) -> list[str]:
    """All lines and sentences of one user message that may be a rule."""
    return [unit for part in _parts_read(text) for line, _ in _lines(part) for unit in _units(line)]


def _parts_read(text: str) -> list[str]:
    # Code goes before the text is cut: the end of a code block alone would look like the beginning of one.
    prose = _without_own_form(_CODE.sub("", text))
    half = MAX_CHARACTERS // 2
    return [prose] if len(prose) <= MAX_CHARACTERS else [prose[:half], prose[-half:]]


def _units(line: str) -> Iterator[str]:
    return (unit for unit in _sentences(line) if len(unit) <= LONGEST and _WORD.search(unit))


def _rules_in(text: str) -> list[str]:
    rules: list[str] = []
    in_list = after_gap = False
    for line, bulleted in _lines(text):
        if not line:
            after_gap = True
            continue
        # A list continues over empty lines, a paragraph ends with one.
        in_list, after_gap = in_list and (bulleted or not after_gap), False
        rules += [unit for unit in _units(line) if (in_list and not is_pasted(unit)) or is_cued(unit)]
        if len(rules) >= MAX_OF_ONE:
            break
        if _LIST.search(line):
            in_list = is_cued(line) or _ABOUT_RULES.search(line) is not None
    return rules[:MAX_OF_ONE]


def without(line: str, listed: Container[str]) -> str:
    """A line of the user without the sentences that are listed elsewhere; "" if nothing is left of it."""
    sentences = _sentences_of(line)
    kept = [unit for unit in sentences if unit not in listed]
    return line.strip() if len(kept) == len(sentences) else " ".join(kept).strip()


def _sentences_of(line: str) -> list[str]:
    """The sentences of a line, without its bullet."""
    bullet = _BULLET.match(line)
    return list(_sentences(line[bullet.end() :] if bullet else line))


class Latest(NamedTuple):
    lines: list[str]
    gone: list[str]
    """The values that the lines do not state any more."""


def latest(lines: Iterable[str]) -> Latest:
    """The user's lines without statements that a later line makes again with another value and names the earlier one.

    Unlike rules, these may be mere talk; so no value goes without being named.
    """
    told, gone, held = list(lines), list[str](), Statements[tuple[int, str]]()
    for place, line in enumerate(told):
        for sentence in _sentences_of(line):
            new = statement(sentence)
            if new is None or not new.value:
                continue
            earlier = held.replaced_by(new)
            if earlier and earlier[0][0] != place:
                (at, before), old = earlier
                held.remove((at, before), old)
                told[at] = without(told[at], {before})
                gone.append(old.value)
                anew = with_earlier(sentence, old.value) if old.value != new.value else sentence
                told[place] = told[place].replace(sentence, anew)
                held.add((place, anew), new)
            else:
                held.add((place, sentence), new)
    kept = [line for line in told if line]
    return Latest(kept, [value for value in gone if not any(states(line, value) for line in kept)])


# -- merging -------------------------------------------------------------------------------------------------------


class Rules:
    """The rules that hold, in the order in which they were first said, each wording once.

    An open task goes when the user says that it is done, and a statement when a later one says the same with another
    value (module `values`). Nothing else goes: if a later sentence revokes or changes an earlier one, the model reads
    both in order and knows which one counts.
    """

    def __init__(self) -> None:
        self.replaced: list[str] = []
        """What was said and does not hold any more."""
        self._kept: dict[str, str] = {}
        self._room = {True: MAX_RULES, False: MAX_RULES}
        self._statements = Statements[str]()
        self._messages = 0
        self._newest = ("", 0)
        """The newest statement with a value, and in which message it was heard."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept.values())

    def recall(self, rules: Iterable[str]) -> None:
        """Takes in the rules of an earlier ledger."""
        for rule in rules:
            self._add(rule, ())
        self._newest = ("", 0)

    def hear(self, message: str, rules: Iterable[str]) -> None:
        """Takes in one message of the user and the rules that were found in it."""
        self._messages += 1
        here: set[str] = set()
        for unit in rules:
            done = DONE.match(unit)
            said = unit if done is None else OPEN + unit[done.end() :]
            plain = wording(said)
            if done is None:
                self._add(said, here)
                here.add(plain)
            elif self._kept.get(plain) == said:
                self._remove(plain)
        # A bare correction means the value that was stated in the message before.
        stated, heard = self._newest
        value = correction(message) if stated in self._kept and self._messages - heard == 1 else None
        if value and (anew := corrected(self._kept[stated], value)):
            self._remove(stated)
            self.replaced.append(message.strip())
            self._add(anew, ())

    def _add(self, said: str, here: Container[str]) -> None:
        """Adds a rule in the place of the one that it replaces, unless that is in the same message, `here`."""
        plain = wording(said)
        if plain in self._kept:
            return
        new = statement(said)
        earlier = self._statements.replaced_by(new) if new else None
        if new and earlier and earlier[0] not in here:
            self._remove(earlier[0])
            if new.form != earlier[1].form:
                self.replaced.append(said)
                said = with_earlier(said, earlier[1].value)
        weak = is_weak(said)
        if not self._room[weak]:
            return
        self._kept[plain] = said
        self._room[weak] -= 1
        if new:
            self._statements.add(plain, new)
            self._newest = (plain, self._messages)

    def _remove(self, plain: str) -> None:
        said = self._kept.pop(plain)
        self._room[is_weak(said)] += 1
        self.replaced.append(said)
        if old := statement(said):
            self._statements.remove(plain, old)


def wording(unit: str) -> str:
    """A unit without what makes no difference: case, spaces, punctuation, words of courtesy."""
    words = (word.strip(".,!;:?。，！；：？\"'`*") for word in unit.casefold().split())
    return " ".join(word for word in words if word and word not in _FILLERS)
