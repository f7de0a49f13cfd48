"""What the user said that still holds: rules, and tasks that are open. Found by cue words, without a model.

The unit is a whole line or sentence of the user, word for word: text is split at line ends and at sentence ends, never
at `;` or `,`. Recall comes first, for a rule that is lost is broken, and a sentence too many costs some tokens. So that
not everything is collected, phrases that only sound like rules ("I don't know", "it never works") are looked past,
questions count only where they ask for something, and code and quotations not at all.

`merged` puts later units to earlier ones: what was said already is left out, and what the user revokes ("forget what I
said about X") or changes ("Y instead of X") goes, where it is clear which one is meant: where exactly one earlier unit
is about the same thing. Else both stay, in the order in which they were said. What revokes stays too, for the revoked
one may stand elsewhere in the view.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

LONGEST = 600
"""Characters of the longest sentence that is taken for a rule: what is longer was pasted."""
MOST_OF_ONE = 40
"""Units that one message may bring."""

# -- units ---------------------------------------------------------------------------------------------------------

_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_BULLET = re.compile(r"\s*(?:(?:[-*+•·–#]+|\(?\d{1,3}[.)]|[a-z][.)])\s+|\(?\d{1,3}[、）]\s*)")
_END = re.compile(r"[。！？]+[”’」』）\"')]*|[.!?…]+[\"'”’)\]]*(?=\s)")
_ABBREVIATED = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|approx|mr|mrs|ms|dr|prof|fig)|(?:^|\s)[A-Z])\.$", re.IGNORECASE)
_WORD = re.compile(r"\w")


def units(text: str) -> Iterator[str]:
    """The lines and sentences of a text, without bullets, code and quotations; what follows a colon is marked off.

    A list under a line that ends in a colon is of that line's kind: `standing` takes them together.
    """
    for line in _lines(text):
        yield from _sentences(line)


def _lines(text: str) -> Iterator[str]:
    for line in _CODE.sub("", text).splitlines():
        if not line.lstrip().startswith(">"):
            yield _unbulleted(line)


def _unbulleted(line: str) -> str:
    found = _BULLET.match(line)
    return (line[found.end() :] if found else line).strip()


def _sentences(line: str) -> Iterator[str]:
    start = 0
    for found in _END.finditer(line):
        if _ABBREVIATED.search(line[max(start, found.end() - 8) : found.end()]):
            continue
        yield line[start : found.end()].strip()
        start = found.end()
    if start < len(line):
        yield line[start:].strip()


# -- cues ----------------------------------------------------------------------------------------------------------

_I = re.IGNORECASE
# What only sounds like a rule; it is taken out before cues are looked for.
_REPORT = re.compile(
    r"\b(?:I|we|they|he|she|it|who|which|that|those|these|still|also|tests?|users?)\s+(?:really\s+|still\s+|just\s+)?"
    r"(?:do not|don['’]?t)\s+(?:know|think|see|understand|remember|recall|believe|have|find|get|care|mind|work|match"
    r"|exist|seem|look|appear|even|really|pass|run|show)\b"
    r"|\b(?:it|this|that|there|which|has|have|had|i['’]ve|we['’]ve|it['’]s|that['’]s)\s+(?:always|never)\b"
    r"|\bI\s+(?:always|never)\s+(?!want|need|like|prefer|expect|use)"
    r"|\bnever\s?mind\b"
    r"|\b(?:it|this|that|there)\s+must\s+(?:be|have)\s+(?:a|an|the|some|been|because|due|something)\b"
    r"|\bnot only\b|\bthe only\b|\bonly\s+(?:a few|some|because|happens?|fails?|works?|then)\b"
    r"|\b(?:it|this|that|there|I|we|they|which|but|just|is|are|was|were|has|have|had|it['’]s|that['’]s)\s+only\b"
    r"|\b(?:I|you|don['’]?t|can['’]?t|cannot|we)\s+remember\b|\bremember\s+(?:when|how we)\b|不要紧|要不要|总是会?[报出失]",
    _I,
)
_STRONG = re.compile(
    r"\bmust(?:n['’]t)?\b|\bnever\b|\balways\b|\b(?:do not|don['’]?t)\b|\bonly\b|\bshall\b"
    r"|\b(?:under no circumstances|at all times|no matter what|at no (?:point|time)|without exception)\b"
    r"|\bmake (?:very |absolutely |quite )?sure\b|\bbe (?:sure|certain|careful)\b|\bensure\b|\bremember\b"
    r"|\b(?:keep|bear) in mind\b|\bfrom (?:now|here|this point|today|this moment) on(?:wards?)?\b|\bgoing forward\b"
    r"|\bhenceforth\b|\bin (?:the )?future\b|\bas a rule\b|\bstop \w+ing\b|\bno longer\b|\bany ?more\b|\binstead\b"
    r"|\b(?:rules?|constraints?|requirements?|important|note)\s*(?:\d+\s*)?[:!：]"
    r"|\bavoid\b|\brefrain\b|\b(?:forbidden|prohibited|mandatory|compulsory|off[- ]limits|non-negotiable)\b"
    r"|(?:\bnot|n['’]t)\s+(?:be\s+)?(?:allowed|permitted|acceptable|touched|changed|modified)\b"
    r"|\b(?:is|are|be) required\b|\brequired to\b|\bshouldn['’]?t\b|\b(?:should|may|shall|ought) (?:not|never|always)\b"
    r"|\byou (?:should|may|can['’]?t|cannot|can not)\b|\bcannot be\b|\bunless\b|\bexcept\b|\buntil I\b"
    r"|\b(?:ask|tell|warn|consult|inform|check with|confirm with|wait for) me\b|\bwithout (?:my|asking)\b"
    r"|\b(?:forget|disregard|ignore|scrap|drop|cancel|revoke|withdraw|lift) (?:about )?(?:what|every|all|my|the|that)"
    r"|\b(?:call|address|refer to) me\b|\bremind me\b|^no (?!problem|idea|worr|thank|way|luck|change|result|error|one\b)"
    r"|必须|必需|务必|不要|(?<![特分区类性级识个告判鉴差])别(?![的人处名国墅致扭])|请勿|切勿|勿(?=[在用将把改删动做])|禁止|严禁"
    r"|不得(?!不)|不许|不准(?!确)|不允许|不可以|不可(?=[以用改删在])|绝不|决不|绝对不|千万|切记|谨记|记住|牢记|记得(?!我|你|上次|吗)"
    r"|始终|永远|总是|一直(?:要|用|以|保持)|每次都?(?:要|先|必)|一律|统一(?:用|使|采)|只能|只用|只许|只可|只准"
    r"|仅(?:限|用|可|使|允)|只(?:回|输|使|修|改|写|给|看)|确保|保证(?!金)|从现在|从今|今后|以后(?:都|请|要|不|别|用|每|只|，)|往后"
    r"|不再|不用再|改用|改成|改为|换成|代替|而不是|除非|应当|不能(?=[用改删动有出使修超少在再把对让直随提泄])"
    r"|(?:规则|约束|要求|注意|重要)(?:事项)?[:：]|忘掉|忘记(?:我|之前|刚才)|忽略(?:我|之前|刚才)|作废|取消|撤销|避免|提醒我",
    _I,
)
_WEAK = re.compile(
    r"^(?:(?:please|pls|ok|okay|also|and|then),?\s+)*(?:use|stick to|follow|keep|prefer)\b"
    r"|^(?:(?:please|pls|ok|okay|also|and|then),?\s+)*(?:reply|respond|answer|speak|write|comment|format)\b.*\b(?:in|as)\b"
    r"|\bshould\b|\bprefer\b|\b(?:whenever|every time|each time)\b|\b(?:at most|at least|no more than|no less than)\b"
    r"|\bI(?:['’]d)? (?:want|need|expect|would like|like) (?:you|all|every|no|the)\b"
    r"|\bto[- ]?do\b|\[ \]|\bstill (?:need|have to|to do|to be|open|missing)\b|\b(?:afterwards|later on|follow up)\b"
    r"|\b(?:when|once) (?:that|this|it)(?:['’]s| is)? (?:done|ready|finished)\b|\bbefore (?:you|we|the release|merging)\b"
    r"|\bdeadline\b|\bdue (?:by|on)\b|\bby (?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\bby (?:tomorrow|tonight)\b"
    r"|请用|用[^，。；]{1,8}(?:回答|回复|编写|写|说|输出)|应该|尽量|最好|要求|不超过|最多|至少|待办|还没做|还要|接下来|之后再|回头再"
    r"|稍后|截止|请先",
    _I,
)
_ASKS = re.compile(r"[?？][\"'”’)）]*$")
_ASKS_FOR = re.compile(r"^(?:(?:can|could|would|will) you|能不能|能否|可以|可否|请)", _I)
_LIST = re.compile(r"[:：]$")
_ABOUT_RULES = re.compile(r"\b(?:rules?|constraints?|requirements?|guidelines?|conventions?|to[- ]?dos?)\b", _I)
_ABOUT_RULES_ZH = re.compile(r"规则|约束|要求|规范|约定|注意事项|待办")
_DONE = re.compile(r"^\[[xX]\]\s*")


def standing(text: str) -> list[str]:
    """The rules and open tasks in one message of the user's, in order."""
    found: list[str] = []
    listing = False
    for line in _lines(text):
        sentences = list(_sentences(line))
        of_list = [each for each in sentences if listing and line]
        found += [each for each in sentences if _fits(each) and (each in of_list or is_cued(each))]
        if _LIST.search(line):
            listing = is_cued(line) or bool(_ABOUT_RULES.search(line) or _ABOUT_RULES_ZH.search(line))
        elif not line:
            listing = False
    return found[:MOST_OF_ONE]


def _fits(unit: str) -> bool:
    return len(unit) <= LONGEST and _WORD.search(unit) is not None


def is_cued(unit: str) -> bool:
    """Whether a unit has the words of a rule or a task, a finished one included."""
    told = _REPORT.sub(" ", unit)
    if _ASKS.search(told):
        return bool(_ASKS_FOR.search(told) and _STRONG.search(told))
    return bool(_STRONG.search(told) or _WEAK.search(told) or _DONE.match(told))


def is_weak(unit: str) -> bool:
    """Whether a unit is a wish or a task rather than a rule: of these the last go first where there is no room."""
    told = _REPORT.sub(" ", unit)
    return not _STRONG.search(told) and bool(_WEAK.search(told))


# -- the same, and the contrary ------------------------------------------------------------------------------------

_SAID = r"(?:what|everything|all|anything) I (?:said|told you|wrote|asked|mentioned)(?: (?:earlier|before))?"
_RULE = r"(?:rule|instruction|request|constraint|requirement|restriction|ban|limit)s?"
_REVOKED = tuple(
    re.compile(pattern, _I)
    for pattern in (
        rf"\b(?:forget|disregard|ignore|scrap|drop|cancel|revoke|withdraw|lift|never ?mind)\s+(?:about\s+)?(?:{_SAID}"
        rf"|(?:my|the|that|our)\s+(?:\w+\s+)?{_RULE})\s+(?:about|on|regarding|concerning|for|with|against)\s+(?P<it>.+)",
        rf"\b(?:forget|disregard|ignore|scrap|drop|cancel|revoke|lift)\s+(?:my|the|that)\s+(?P<it>.+?)\s+{_RULE}\b",
        rf"\b{_RULE}\s+(?:about|on|regarding|for|against)\s+(?P<it>.+?)\s+(?:no longer|does not|doesn['’]t)\b",
        r"\b(?:you|we)\s+no longer\s+(?:need|have)\s+to\s+(?P<it>.+)",
        r"\b(?:you|we)\s+(?:do not|don['’]?t)\s+(?:need|have)\s+to\s+(?P<it>.+?)\s+(?:any ?more|any longer)",
        r"^(?P<it>.+?)\s+(?:is|are)\s+(?:no longer (?:needed|required|necessary|forbidden|off[- ]limits)"
        r"|(?:allowed|fine|okay|ok|permitted) (?:again|now))",
        r"\byou\s+(?:can|may)\s+(?P<it>.+?)\s+(?:again|after all)\b",
        r"(?:忘掉|忘记|忽略|取消|撤销)(?:我)?(?:之前|刚才|前面|以前)?(?:说过?的|提的|定的)?(?:关于|有关)?"
        r"(?P<it>.+?)(?:的?(?:要求|规则|限制|规定|事|话|约束))?[。！]?$",
        r"(?:以后|现在)?(?:不用|不必|不需要)再(?P<it>.+?)了?[。！]?$",
        r"^(?:关于)?(?P<it>.+?)的?(?:要求|规则|限制|规定)(?:已?作废|取消|不再适用|不再有效)",
    )
)
_STOPS_AT = r"(?=\s*[,;.!，；。！]|\s+(?:from now|in|for|please|when|and)\b|$)"
_CHANGED = tuple(
    re.compile(pattern, _I)
    for pattern in (
        rf"\binstead of\s+(?:using\s+)?(?P<it>.+?)(?=\s+(?:use|write)\b|\s*[,;.!]|\s+from now|$)",
        rf"\bno longer\s+(?:use|using|want|do|write|reply in)?\s*(?P<it>.+?){_STOPS_AT}",
        r"\b(?:switch|change|move|migrate)\s+(?:over\s+)?from\s+(?P<it>.+?)\s+to\b",
        r"\breplace\s+(?P<it>.+?)\s+(?:by|with)\b",
        rf"\b(?:do not|don['’]?t|stop)\s+(?:use|using|write|writing)\s+(?P<it>.+?)\s+any ?(?:more|longer)",
        rf"\bstop\s+(?:using\s+)?(?P<it>.+?){_STOPS_AT}",
        r"代替(?P<it>[^，。；]+)",
        r"[把将从](?P<it>[^，。；]+?)(?:换成|改成|改为|替换)",
        r"不再(?:使用|用)?(?P<it>[^，。；]+)",
        r"改用[^，。；]+[，,；]?\s*(?:不要|别)(?:再)?用(?P<it>[^，。；]+)",
    )
)
_NEGATED = re.compile(r"\bnever\b|\bnot\b|n['’]t\b|\bdont\b|\bavoid\b|\bno\b|不|别|勿|禁止|严禁|避免", _I)
_TERM = re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff]+(?:[._/-][^\W_]+)*|[\u3040-\u30ff\u3400-\u9fff]+")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_STOP = frozenset(
    "a an the and or but if of to in on at by for with as is are be i you we it me my your our this that these those "
    "please also again any more anymore so then now from just use using used do does not don t never always must".split()
)
_FILLERS = frozenset("please pls remember again also and ok okay so note that as i said once more reminder".split())
_SAME = 0.75
_MOST_BESIDE = 1.0
_GRAM_WEIGHT = 0.25


class _Reading(NamedTuple):
    """What a unit is compared by: its words in one form, and its terms."""

    plain: str
    terms: frozenset[str]


def merged(rules: Sequence[str], new: Iterable[str]) -> list[str]:
    """The rules that hold after new ones came, in the order in which they were first said."""
    kept = [(unit, _read(unit)) for unit in rules]
    for unit in new:
        reading = _read(unit)
        done = _DONE.match(unit)
        if done:
            kept = [each for each in kept if each[0] != f"[ ] {unit[done.end() :]}"]
            continue
        gone = _superseded(unit, reading, [each for each, _ in kept])
        kept = [each for each in kept if each[0] != gone]
        if reading.plain not in {each.plain for _, each in kept}:
            kept.append((unit, reading))
    return [unit for unit, _ in kept]


def _read(unit: str) -> _Reading:
    words = [word.casefold() for word in _TERM.findall(unit)]
    plain = " ".join(word for word in words if word not in _FILLERS)
    # Marks such as a box, a sign or a quantity's unit say something too, where words alone are the same.
    return _Reading(plain or unit, _terms(unit))


def _terms(text: str) -> frozenset[str]:
    """Words in one form, and pairs of characters where a script has no spaces."""
    found: set[str] = set()
    for word in _TERM.findall(text.casefold()):
        if not _IDEOGRAPH.match(word):
            found.add(word.removesuffix("s") if len(word) > 3 else word)
        else:
            found.update(word[i : i + 2] for i in range(max(len(word) - 1, 1)))
    return frozenset(found - _STOP)


def _superseded(unit: str, reading: _Reading, earlier: Sequence[str]) -> str | None:
    """The one earlier unit that `unit` revokes or changes; None where there is none, or where it is not clear."""
    for patterns, is_meant in ((_REVOKED, _is_about), (_CHANGED, _is_changed)):
        subject = next((_terms(found["it"]) for each in patterns if (found := each.search(unit))), frozenset())
        meant = [each for each in earlier if subject and is_meant(each, subject, reading.terms)]
        if len(meant) == 1 and meant[0] != unit:
            return meant[0]
    return None


def _is_about(earlier: str, subject: frozenset[str], _: frozenset[str]) -> bool:
    return len(subject & _terms(earlier)) >= _SAME * len(subject)


def _is_changed(earlier: str, subject: frozenset[str], new: frozenset[str]) -> bool:
    """Whether `earlier` asks for the subject, and for little else that would be lost with it."""
    beside = _terms(earlier) - subject - new
    weight = sum(_GRAM_WEIGHT if _IDEOGRAPH.match(each) else 1.0 for each in beside)
    return _is_about(earlier, subject, new) and not _NEGATED.search(earlier) and weight <= _MOST_BESIDE
