"""Values: whether a statement says again what an earlier one said, with another value.

A statement is a sentence with a value in it: an amount, a quantity with its unit, a date, a time, a name behind "the
owner is". Two statements are the same if nothing but the values differs, and words like "now" and "actually"; or if
they name the same thing (`_THINGS`), with values of one kind and the same other words. A number that names something
("door 7", "port 8080") is no value, and two bans on two days are two bans. Where that leaves a doubt, they are
different: a value that is wrongly forgotten costs more than one that is kept twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from strategies.keywords import keywords

UNIT = (
    r"(?:(?:%|‰|°[CF]|ms|µs|us|ns|s|sec|seconds?|min|minutes?|h|hours?|days?|weeks?|months?|years?|[KMGT]i?B|bytes?|px|pt|mm"
    r"|cm|m|km|kg|g|mg|lb|ml|l|V|W|kW|kWh|[kMG]?Hz|rpm|fps|tokens?|lines?|rows?|USD|EUR|GBP|CNY|RMB|JPY)(?![\w-])"
    r"|(?:元|美元|块|万|亿|个|条|次|天|小时|分钟|秒|周|个月|年|米|公里|公斤|度))"
)
_NUMBER = r"\d+(?:[.,]\d+)*"
_MONEY = (
    rf"[$€£¥]\s?{_NUMBER}(?:\s?(?:k|m|bn|million)\b)?"
    rf"|{_NUMBER}\s?(?:dollars|euros|pounds|USD|EUR|GBP|CNY|RMB|JPY|欧元|美元|万元|元|块)"
)
_DAY = (
    r"\d{4}-\d{2}-\d{2}|(?:\d{1,2}(?:st|nd|rd|th)?\s)?\b(?:Jan|Feb|Mar|Apr|May(?=\s\d)|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b"
    r"(?:\s\d{1,2}(?:st|nd|rd|th)?\b)?|\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?\b|\btomorrow\b|\btonight\b|\bQ[1-4]\b"
    r"|\b(?:the )?end of (?:the )?(?:day|week|month|quarter|year)\b|\bnext (?:week|month|quarter|year)\b"
    r"|\d{1,2}月\d{1,2}[日号]|(?:下下?周|本周|周|星期|礼拜)[一二三四五六日天]|月底|年底|明天|后天"
)
_TIME = r"\b\d{1,2}(?::\d{2})?\s?[ap]m\b|\b\d{1,2}:\d{2}\b|(?:上午|下午|晚上)?\d{1,2}[点时]"

_PERSON = r"(?-i:[A-Z][\w.-]*(?: [A-Z][\w.-]*)?)"
_VALUE = re.compile(
    rf"(?P<money>{_MONEY})|(?P<day>{_DAY})|(?P<time>{_TIME})|(?P<quantity>(?<![\w.]){_NUMBER}[\s-]?{UNIT})"
    rf"|(?P<number>(?<![\w.]){_NUMBER}(?:\b|(?=[^\x00-\x7f])))",
    re.IGNORECASE,
)
# Behind these words a number says how much, and a name who; behind a noun they say which one.
_TELLS = re.compile(
    r"(?:\b(?:is|are|be|to|of|at|by|under|over|below|above|within|than|until|most|least|exceed|exceeds|reach|now|about|around)"
    r"|[=:：]|是|为|到|至|成|过|于|达)\s*$",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"(?:\bis|\bare|:|：|\bto)\s+(?:now\s+)?({_PERSON})\W*$"
    r"|(?:是|为|：|由|改为|改成)([^\W\d_]{2,4})(?:负责)?[。.]?$"
)
_OWNER = re.compile(
    rf"^({_PERSON})(?= (?:now |will )?(?:owns?|leads?|runs|reviews|approves|is (?:responsible|in charge))\b)"
    r"|^由([^\W\d_]{2,4}?)(?=负责)"
)
_THINGS = {
    "budget": r"budget|spend(?:ing)?|预算",
    "deadline": r"deadline|due|cut-?off|截止(?:日期|时间)?|期限",
    "owner": r"owner|owns?|responsible|in charge|lead|负责人?",
    "reviewer": r"reviewers?|approvers?|审核人|审批人",
    "launch": r"launch|release|go-?live|发布|上线",
    "timeout": r"timeout|超时",
    "port": r"port|端口",
    "region": r"region|区域",
    "quota": r"quota|配额|额度",
    "limit": r"limit|cap|ceiling|maximum|max|上限",
}
_THING = {name: re.compile(rf"(?:\b|(?=[^\x00-\x7f]))(?:{words})", re.IGNORECASE) for name, words in _THINGS.items()}
_CHANGES = re.compile(
    r"\b(?:now|actually|instead|correction|update[ds]?|changed?|moved?|extended|raised|lowered|reduced|increased|revised|new"
    r"|no longer|from now on|rather|sorry|wait|scratch that|make (?:it|that)|taken? over|takes over)\b"
    r"|改为|改成|改到|改由|更正|调整|提高|降低|延期|延到|推迟|提前|现在|新的?|其实|不对",
    re.IGNORECASE,
)
_PARTICLES = re.compile("[是为的了]")
_EMPTY = frozenset(keywords("empty_words", "cues.toml"))
_BANS = re.compile(r"\b(?:never|no|not|don['’]?t|avoid)\b|不|别|勿|禁", re.IGNORECASE)
_WORDS = re.compile(r"§?[^\W_][\w'’-]*")
_LONGEST = 300


class Statement(NamedTuple):
    """A sentence with its values left out."""

    form: str
    """All other words, with the kinds of the values at their places."""
    thing: tuple[str, str] | None
    """What it is about, and the kind of its only value; None if it names nothing that has a value."""
    others: frozenset[str]
    changes: bool
    """Whether it says itself that something has changed."""

    def replaces(self, earlier: Statement) -> bool:
        """Whether it says the same as an earlier statement, with a value of its own."""
        if self.form == earlier.form:
            return True
        if self.thing is None or self.thing != earlier.thing:
            return False
        return self.others == earlier.others or (
            self.changes and (self.others <= earlier.others or earlier.others <= self.others)
        )


def statement(sentence: str) -> Statement | None:
    """The statement that a sentence makes; None if it has no value that a later one could replace."""
    if len(sentence) > _LONGEST:
        return None
    spans = list(_values(sentence))
    kinds = [kind for kind, _, _ in spans]
    if not spans or ("day" in kinds and _BANS.search(sentence)):
        return None
    form, place = "", 0
    for kind, start, end in spans:
        form, place = f"{form}{sentence[place:start]} §{kind} ", end
    form += sentence[place:]
    told = _PARTICLES.sub(" ", _CHANGES.sub(" ", form)).casefold()
    words = [word for word in _WORDS.findall(told) if word not in _EMPTY]
    content = [word for word in words if not word.startswith("§")]
    if not content:
        return None
    about = next((name for name, pattern in _THING.items() if pattern.search(form)), "") if len(kinds) == 1 else ""
    others = frozenset(word for word in content if not (about and _THING[about].fullmatch(word)))
    changes = _CHANGES.search(form) is not None
    return Statement(" ".join(words), (about, kinds[0].partition("_")[0]) if about else None, others, changes)


def _values(sentence: str) -> Iterator[tuple[str, int, int]]:
    """The kind and the place of each value in a sentence."""
    if owner := _OWNER.search(sentence):
        yield "name", *owner.span(owner.lastindex or 0)
        return
    found = False
    for match in _VALUE.finditer(sentence):
        kind = match.lastgroup or ""
        if kind == "number" and not _TELLS.search(sentence[max(match.start() - 12, 0) : match.start()]):
            continue
        found = True
        if kind == "quantity":
            kind += "_" + match.group().lstrip("0123456789,. -").casefold().rstrip("s")
        yield kind, *match.span()
    named = None if found else _NAMED.search(sentence)
    if named and any(pattern.search(sentence) for pattern in _THING.values()):
        yield "name", *named.span(named.lastindex or 0)


_CORRECTION = re.compile(
    r"^\W*(?:no|nope|sorry|actually|correction|wait|make (?:it|that)|I mean(?:t)?|scratch that|不对?|不是|更正|说?错了"
    r"|应该是|改成|改为)(?:[\s,，:：—-]+(?:no|sorry|actually|it|that|is|was|should be|make it|I meant?|the|right"
    r"|correct|answer|value|number|['’]s|应该|是|改成|改为))*"
    rf"[\s,，:：—-]*((?:[$€£¥]\s?)?{_NUMBER}(?:[\s-]?{UNIT})?|{_DAY}|{_TIME})"
    r"(?:\s?(?:instead|please|then|now|才对|才是|吧))?[\s.!。！]*$",
    re.IGNORECASE,
)


def correction(message: str) -> str | None:
    """The value that a whole message gives in place of another one, such as "no, 956"; None for all else."""
    match = _CORRECTION.match(message) if len(message) <= 80 else None
    return match.group(1).strip(".,。 ") if match else None


def corrected(sentence: str, value: str) -> str | None:
    """The sentence with another value, the old one named beside it; None if it is not clear which value is meant."""
    spans = list(_values(sentence)) if len(sentence) <= _LONGEST else []
    if len(spans) != 1:
        return None
    kind, start, end = spans[0]
    old = sentence[start:end]
    is_number = re.fullmatch(_NUMBER, value) is not None
    if is_number and kind not in {"day", "time", "name"}:
        new = re.sub(_NUMBER, lambda _: value, old, count=1)
    elif next(iter(_values(f"is {value}")), ("",))[0] == kind:
        new = value
    else:
        return None
    if new == old:
        return None
    was = f"（取代 {old}）" if not sentence.isascii() and re.search(r"[一-鿿]", sentence) else f" (was {old})"
    return f"{sentence[:start]}{new}{sentence[end:]}{was}"
