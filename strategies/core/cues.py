"""Cues: whether a sentence has the words of a rule, a preference, a decision, a limit or a task.

A word alone is no cue: "I always forget", "it must be the cache" and "I don't know" have the words of rules and tell a
story. What counts is where they stand: an order begins a clause ("and never push"), or somebody is bound by it ("you
must", "the key must not", "I'd rather"). `keywords/cues.toml` has the words, English and Chinese, by their places.
Phrases that only sound like a rule are cut out before the search.

    strong   it binds: an order that lasts, a ban, a preference, a decision, a limit
    weak     a wish or a task: it may be done with soon, and gives way if room is short
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from strategies.keywords import keywords

_FILE, _PARTS = "cues.toml", ("manner", "making", "lasting", "limit", "value")


def _pattern(before: str, *tables: str) -> re.Pattern[str]:
    """The phrases of some tables as one pattern behind `before`, so that most positions of a text fail at once."""
    phrases = "|".join(phrase for table in tables for phrase in keywords(table, _FILE))
    for part in _PARTS:
        phrases = phrases.replace(f"{{{part}}}", "|".join(keywords(part, _FILE)))
    return re.compile(f"{before}(?:{_BREAK.sub('', phrases)})", re.IGNORECASE)


_BREAK = re.compile(r"\n\s{4}")
"""A long phrase goes on in a line of its own."""
_COURTESY = "and|but|so|then|also|please|pls|kindly|just|ok|okay|yes|well"
_POLITE = rf"(?:(?:{_COURTESY}|no|alright|actually|additionally)[,:]?\s){{0,3}}"
_CLAUSE = rf"(?:^|(?<=[,;:(—–\"“])\s?|\b(?:{_COURTESY}|or|again)\s){_POLITE}"
_SENTENCE = r"(?:^\W*|(?<=[,;:—–])\s?)" + _POLITE
_CHINESE_CLAUSE = r"(?:^|[，,。；;：:、！!“（(]|请|也|并|且|但|而|就|都|要|还|你|您|我们|大家|千万|一定|绝对|记得|\s)"

_REPORTS = (_pattern(r"\b", "english_reports"), _pattern(r"^\W*", "english_report_openings"))
_STRONG = (
    _pattern(_CLAUSE, "english_clause"),
    _pattern(_SENTENCE, "english_sentence"),
    _pattern(r"^\W*", "english_opening"),
    _pattern(r"\b", "english_inside"),
    re.compile(
        r",\s?no (?!specific|reason|problem|worr|need|rush|thank|issue|idea|one\b|matter)[\w -]{2,30}[!.]?$",
        re.IGNORECASE,
    ),
)
_WEAK = (
    _pattern(r"^\W*", "english_weak_opening"),
    _pattern(_SENTENCE, "english_weak_sentence"),
    _pattern(r"\b", "english_weak_inside"),
    re.compile(r"^\[[ xX]\] \w"),
)
_CHINESE_REPORTS = (_pattern("", "chinese_reports"),)
_CHINESE_STRONG = (
    _pattern(_CHINESE_CLAUSE, "chinese_clause"),
    _pattern("^", "chinese_opening"),
    _pattern("", "chinese_inside"),
)
_CHINESE_WEAK = (_pattern("", "chinese_weak_inside"),)
_CHINESE_ONCE = (_pattern("", "chinese_once"),)
# A question is a rule only if it asks for something that lasts.
_ASKS = re.compile(r"[?？][\"'”’)）]*$")
_ASKS_FOR = re.compile(
    r"^\W*(?:\w+[,，]? )?(?:(?:can|could|would|will) you|能不能|能否|可以|可否|请|以后)", re.IGNORECASE
)
_ASKED_TO_LAST = re.compile(
    r"\b(?:always|never|only|from now on|every time|each time|whenever|in future|going forward|for the rest"
    r"|do not|don['’]t|not (?:to|use))\b|始终|总是|永远|以后|从现在|每次|一律|不要|只用|别再",
    re.IGNORECASE,
)
_PASTED = re.compile(
    r"^\s*(?:[;{}<@$%➜⠇]|//|/\*|\+\+|--\s|\w+\(.*\)\s*[;{]|(?:if|for|while) \(|\[[xX+*-]\] .*(?:\.\.|:\d| port \d))"
    r"|[;{]\s*$|\{\s*['\"]\w+['\"]\s*:"
)


def is_pasted(unit: str) -> bool:
    """Whether a unit looks like code, a log or data rather than something that a person says."""
    return _PASTED.search(unit) is not None


def is_cued(unit: str) -> bool:
    """Whether a unit has the words of a rule or a task, even of a finished one."""
    return any(_heard(unit))


def is_weak(unit: str) -> bool:
    """Whether a unit is a wish or a task rather than a rule. If room is short, these give way."""
    return _heard(unit)[1]


def _heard(unit: str) -> tuple[bool, bool]:
    """Whether a unit has strong cues, and whether it has only weak ones."""
    if is_pasted(unit):
        return False, False
    is_chinese = not unit.isascii()
    text = unit
    for report in (*_REPORTS, *(_CHINESE_REPORTS if is_chinese else ())):
        text = report.sub(" ~ ", text)
    if _ASKS.search(unit):
        return _ASKS_FOR.search(unit) is not None and _ASKED_TO_LAST.search(text) is not None, False
    also_chinese = is_chinese and not _has(text, _CHINESE_ONCE)
    if _has(text, _STRONG) or (also_chinese and _has(text, _CHINESE_STRONG)):
        return True, False
    return False, _has(text, _WEAK) or (also_chinese and _has(text, _CHINESE_WEAK))


def _has(text: str, patterns: Iterable[re.Pattern[str]]) -> bool:
    return any(pattern.search(text) for pattern in patterns)
