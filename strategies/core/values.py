"""Values: whether a statement says again what an earlier one said, with another value.

A statement is a sentence with a value in it: an amount, a quantity with its unit, a date, a time, a name behind "the
owner is", an address, an identifier. Two statements are the same if nothing but the values differs, and words like
"now" and "actually". One paraphrases the other if each has a single value, of the same kind and unit, and both are
about the same: the same things (`_THINGS`), names and other words. Endings do not count, nor do words that only carry
a verb ("is hosted in", "we want") or that the kind of value implies ("date"). A number that names something ("door 7",
"port 8080") is no value, and two bans on two days are two bans. In doubt, two statements are different: to forget a
value wrongly costs more than to keep it twice. What a paraphrase replaces is named beside its value: `(was 40 USD)`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

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
# With a hyphen, dot or slash inside, and a digit: OBW-8394, release-1.2, feature/login-52; or the digest of a commit.
_IDENTIFIER = (
    r"\b(?=[\w./-]{0,60}\d)[a-z]\w*(?:[-/.]\w+){1,8}(?![\w/-])|\b(?=[a-f]{0,40}\d)(?=\d{0,40}[a-f])[0-9a-f]{7,40}\b"
)
_VALUE = re.compile(
    r"(?P<address>https?://[^\s<>\"'`)\]，。；、]*[^\s<>\"'`)\]，。；、.,;:!?])"
    r"|(?P<zone>(?-i:\b[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+\b|\bUTC(?:[+-]\d{1,2})?\b))"
    rf"|(?P<share>\b\d+ (?:out )?of \d+\b)|(?P<money>{_MONEY})|(?P<day>{_DAY})|(?P<time>{_TIME})"
    rf"|(?P<quantity>(?<![\w.]){_NUMBER}[\s-]?{UNIT})"
    rf"|(?P<identifier>{_IDENTIFIER})|(?P<number>(?<![\w.]){_NUMBER}(?:\b|(?=[^\x00-\x7f])))",
    re.IGNORECASE,
)
# Behind these words a number says how much, and a name who; behind a noun they say which one.
_TELLS = re.compile(
    r"(?:\b(?:is|are|be|to|of|at|by|under|over|below|above|within|than|until|most|least|exceed|exceeds|reach|now|about|around)"
    r"|[=:：]|是|为|到|至|成|过|于|达)\s*$",
    re.IGNORECASE,
)
# The same for an address or an identifier, of a subject that is definite: there are many "other examples".
_PLACES = re.compile(
    r"(?:\b(?:is|are)(?: now)?(?: at| on)?|[=:：]|是|为|在)\s*$",
    re.IGNORECASE,
)
_MOVED = re.compile(
    r"(?:\b(?:lives?|runs?|hosted|deployed|reachable|located|moved) (?:at|on|to)|改为|改成|改到|迁到)\s*$",
    re.IGNORECASE,
)
_AS_THE = re.compile(r"[\s,]*as (?:the|our|my)\b", re.IGNORECASE)
_DEFINITE = re.compile(
    r"\b(?:the|our|my|his|her|their|this|current|new)\b|['’]s\b|当前|目前|我们?的|现在", re.IGNORECASE
)
_NAMED = re.compile(
    rf"(?:\bis|\bare|:|：|\bto)\s+(?:now\s+)?({_PERSON})\W*$"
    r"|(?:是|为|：|由|改为|改成)([^\W\d_]{2,4})(?:负责)?[。.]?$"
)
_OWNER = re.compile(
    rf"^({_PERSON})(?= (?:now |will )?(?:owns?|leads?|runs|reviews|approves|is (?:responsible|in charge))\b)"
    rf"|\b[Oo]nly ({_PERSON})(?= (?:may|can|should|is allowed to)\b)"
    r"|^由([^\W\d_]{2,4}?)(?=负责)"
)
_THINGS = {
    "budget": r"budget|spend(?:ing)?|预算|花费|开销|花",
    "deadline": r"deadline|due|cut-?off|截止(?:日期|时间)?|期限",
    "owner": r"owner|owns?|responsible|in charge|lead|负责人?",
    "reviewer": r"reviewers?|approvers?|审核人|审批人",
    "launch": r"launch|release|go-?live|发布|上线",
    "timeout": r"timeout|超时",
    "port": r"port|端口",
    "region": r"region|区域",
    "quota": r"quota|配额|额度",
    "limit": r"limit|cap|ceiling|maximum|max|上限",
    "zone": r"time ?zones?|times|时区",
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
_LIGHT = frozenset(keywords("light_words", "cues.toml"))
_IMPLIED = {
    kind: frozenset(keywords(f"implied_by_{kind}", "cues.toml")) for kind in ("day", "time", "address", "zone", "money")
}
_CHINESE_LIGHT = re.compile("|".join(keywords("chinese_light", "cues.toml")))
# What a value counts for: "40 USD a day" is not "40 USD a week".
_RATE = re.compile(
    r"(?:\b(?:an?|per|each|every)\s|/\s?)(second|minute|hour|day|week|month|quarter|year|request|user|person|call)\b"
    r"|\b(hour|dai|week|month|quarter|year)ly\b|每(?:一|个)*(秒|分钟|小时|天|日|周|月|年|次|人)",
    re.IGNORECASE,
)
_RATES = {"dai": "day", "秒": "second", "分钟": "minute", "小时": "hour", "天": "day", "日": "day", "周": "week"}
_RATES |= {"月": "month", "年": "year", "次": "request", "人": "person"}
_MOST = re.compile(
    r"\b(?:under|below|within|up to|at most|at the most|(?:no|not) (?:more|longer|over) than|not over"
    r"|(?:less|fewer) than|(?:never|not|don['’]t) (?:exceed|go over|go above))\b|不超过|最多|至多|以内|以下",
    re.IGNORECASE,
)
_LEAST = re.compile(
    r"\b(?:over|above|at least|at the least|(?:no|not) (?:less|fewer) than|more than)\b|不少于|最少|至少|以上",
    re.IGNORECASE,
)
_CURRENCIES = {"$": "usd", "dollars": "usd", "美元": "usd", "€": "eur", "euros": "eur", "欧元": "eur", "£": "gbp"}
_CURRENCIES |= {"pounds": "gbp", "¥": "cny", "rmb": "cny", "元": "cny", "块": "cny", "万元": "cny"}
_UNITS = (
    (
        "duration",
        r"ms|µs|us|ns|s|secs?|seconds?|min|minutes?|h|hours?|days?|weeks?|months?|years?|小时|分钟|秒|天|周|个月|年",
    ),
    ("bytes", r"[kmgt]i?b|bytes?"),
)
# That a date is firm says nothing else about it, and is no ban.
_FIRM = re.compile(
    r"(?:,|;|\band)?\s*(?:it|this|that|the (?:date|day|time|deadline))?\s*(?:does|will|can|must|may|should)"
    r"(?:n['’]t| ?not) (?:be )?(?:move|slip|change|postpone|extend)(?:d|ed)?\b",
    re.IGNORECASE,
)
_BANS = re.compile(r"\b(?:never|no|not|don['’]?t|avoid|without)\b|不|别|勿|禁", re.IGNORECASE)
_WAS = re.compile(r"\s*(?:\(was [^()]{1,80}\)|（取代 [^（）]{1,80}）)(?=[\s.!。！]*$)")
_STOP = re.compile(r"[\s.!。！]*$")
_WORDS = re.compile(r"§?[^\W_][\w'’-]*")
_ENDING = re.compile(r"['’]s$|(?<=[a-z]{4})(?:ing|ed|es|s)$|(?<=[a-z]{2}[^s])s$")
_LONGEST = 300
_LONGEST_WAS = 100  # characters of an earlier value that is named


class Statement(NamedTuple):
    """A sentence with its values left out."""

    form: str
    """All other words, with the kinds of the values at their places."""
    kind: str
    """The kind and unit of its only value; "" if it has more."""
    value: str
    about: frozenset[str]
    """What it is about: its things, as `§budget`, and the stems of its other words, without those that say nothing."""
    named: bool
    """Whether it names a thing that has a value."""
    changes: bool
    """Whether it says itself that something has changed."""

    def replaces(self, earlier: Statement) -> bool:
        """Whether it says the same as an earlier statement, with a value of its own."""
        return self.form == earlier.form or self.paraphrases(earlier)

    def paraphrases(self, earlier: Statement) -> bool:
        if not self.kind or self.kind != earlier.kind or self.value.casefold() == earlier.value.casefold():
            return False
        both_named = self.named and earlier.named
        if self.about == earlier.about:
            return both_named or self.changes or len(self.about) > 1
        # A change may be said in fewer words than what it changes, or in more.
        shared = self.about & earlier.about
        is_part = shared in (self.about, earlier.about)
        return self.changes and both_named and is_part and any(word.startswith("§") for word in shared)


def statement(sentence: str) -> Statement | None:
    """The statement that a sentence makes; None if it has no value that a later one could replace."""
    if len(sentence) > _LONGEST + _LONGEST_WAS:
        return None
    said = _WAS.sub("", sentence)
    if len(said) > _LONGEST:
        return None
    spans = list(_values(said))
    kinds = [kind for kind, _, _ in spans]
    if not spans or (_BANNED & set(kinds) and _BANS.search(_FIRM.sub(" ", said))):
        return None
    form, place = "", 0
    for kind, start, end in spans:
        form, place = f"{form}{said[place:start]} §{kind} ", end
    form += said[place:]
    told = _PARTICLES.sub(" ", _CHANGES.sub(" ", form)).casefold()
    words = [word for word in _WORDS.findall(told) if word not in _EMPTY]
    if all(word.startswith("§") for word in words):
        return None
    kind, start, end = spans[0]
    about, named = _about(form, kind) if len(spans) == 1 else (frozenset[str](), False)
    only = (_with_unit(kind, said[start:end]), said[start:end].strip()) if len(spans) == 1 else ("", "")
    return Statement(" ".join(words), *only, about, named, _CHANGES.search(form) is not None)


_BANNED = frozenset({"day", "address", "zone", "identifier"})


def _with_unit(kind: str, value: str) -> str:
    """The kind of a value with its unit, where several units measure the same as one of them."""
    if kind == "money":
        code = re.sub(r"[\d.,\s]+|\b(?:k|m|bn|million)\b", "", value.casefold())
        return f"money_{_CURRENCIES.get(code, code)}"
    name, _, unit = kind.partition("_")
    return next((f"{name}_{what}" for what, units in _UNITS if re.fullmatch(units, unit)), kind) if unit else kind


def _about(form: str, kind: str) -> tuple[frozenset[str], bool]:
    """What a sentence is about if its values are left out, and whether it names a thing."""
    text = _FIRM.sub(" ", _CHANGES.sub(" ", form))
    text = _RATE.sub(lambda match: f" §per-{_rate(match.group(match.lastindex or 0))} ", text)
    text = _LEAST.sub(" §least ", _MOST.sub(" §most ", text))
    things = [name for name, pattern in _THING.items() if pattern.search(text)]
    for name in things:
        text = _THING[name].sub(f" §{name} ", text)
    if not text.isascii():
        text = _CHINESE_LIGHT.sub(" ", text)
    base = kind.partition("_")[0]
    implied = _IMPLIED.get(base, frozenset())
    silent = _EMPTY | _LIGHT | {f"§{base}", f"§{kind}"}
    words = _WORDS.findall(_PARTICLES.sub(" ", text).casefold())
    content = {_stem(word) for word in words if word not in silent} - silent
    about = frozenset(word for word in content if word not in implied)
    return about or frozenset(content), bool(things) or about < content


def _rate(word: str) -> str:
    return _RATES.get(word.casefold(), word.casefold())


def _stem(word: str) -> str:
    return word if word.startswith("§") else _ENDING.sub("", _ENDING.sub("", word, count=1), count=1)


def _values(sentence: str) -> Iterator[tuple[str, int, int]]:
    """The kind and the place of each value in a sentence."""
    if owner := _OWNER.search(sentence):
        yield "name", *owner.span(owner.lastindex or 0)
        return
    found = False
    for match in _VALUE.finditer(sentence):
        kind = match.lastgroup or ""
        before = sentence[max(match.start() - 24, 0) : match.start()]
        if kind == "number" and not _TELLS.search(before):
            continue
        if kind == "zone" and not _THING["zone"].search(sentence):
            continue
        if kind in {"address", "identifier"} and not _is_told(sentence, before, match.end()):
            continue
        found = True
        if kind == "quantity":
            unit = match.group().lstrip("0123456789,. -").casefold()
            kind += "_" + (unit.rstrip("s") if len(unit) > 2 else unit)
        yield kind, *match.span()
    named = None if found else _NAMED.search(sentence)
    if named and any(pattern.search(sentence) for pattern in _THING.values()):
        yield "name", *named.span(named.lastindex or 0)


def _is_told(sentence: str, before: str, end: int) -> bool:
    """Whether a sentence tells the address or identifier that ends at `end`, rather than mentions it."""
    if _AS_THE.match(sentence, end) or _MOVED.search(before):
        return True
    return _PLACES.search(before) is not None and _DEFINITE.search(sentence) is not None


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
    if is_number and kind.partition("_")[0] in {"money", "quantity", "number"}:
        new = re.sub(_NUMBER, lambda _: value, old, count=1)
    elif next(iter(_values(f"is {value}")), ("",))[0] == kind:
        new = value
    else:
        return None
    if new == old:
        return None
    return with_earlier(f"{sentence[:start]}{new}{sentence[end:]}", old)


def with_earlier(sentence: str, old: str) -> str:
    """A sentence with the value beside it that it replaces."""
    is_chinese = not sentence.isascii() and re.search(r"[一-鿿]", sentence)
    bare, was = _WAS.sub("", sentence), f"（取代 {old}）" if is_chinese else f" (was {old})"
    return _STOP.sub(lambda stop: was + stop.group(), bare, count=1)


def states(line: str, value: str) -> bool:
    """Whether a line has a value otherwise than as one that was replaced."""
    return value in _WAS.sub("", line)


Key = TypeVar("Key", bound=Hashable)


class Statements(Generic[Key]):
    """The statements that hold, each under a key of its owner."""

    def __init__(self) -> None:
        self._by_form: dict[str, tuple[Key, Statement]] = {}
        self._by_kind: dict[str, dict[Key, Statement]] = {}

    def replaced_by(self, new: Statement) -> tuple[Key, Statement] | None:
        """The statement that a new one replaces, with its key; None if there is none, or more than one."""
        if same := self._by_form.get(new.form):
            return same
        newest = list(self._by_kind.get(new.kind, {}).items())[-_NEWEST:]
        found = [(key, old) for key, old in newest if new.paraphrases(old)]
        return found[0] if len(found) == 1 else None

    def add(self, key: Key, new: Statement) -> None:
        self._by_form[new.form] = key, new
        if new.kind:
            self._by_kind.setdefault(new.kind, {})[key] = new

    def remove(self, key: Key, old: Statement) -> None:
        same = self._by_form.get(old.form)
        if same and same[0] == key:
            del self._by_form[old.form]
        self._by_kind.get(old.kind, {}).pop(key, None)


_NEWEST = 40
"""How many statements of a kind are compared with a new one."""
