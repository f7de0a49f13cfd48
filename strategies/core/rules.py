"""Rules: finds the user's standing rules and open tasks by cue words, without a model.

The unit is a whole line or sentence of the user, word for word: text is split at line ends and at sentence ends, never
at `;` or `,`. Recall matters more than precision, because a rule that is lost will be broken, while one sentence too
many costs only some tokens. To keep the number down, phrases that only sound like rules ("I don't know", "it never
works") are ignored, questions count only if they ask for something, and code and quotations do not count at all. Text
that looks like one of our own ledgers or records does not count either: the user has pasted it, or somebody poses as
the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

LONGEST = 600
"""Characters of the longest sentence that may be a rule; anything longer was pasted."""
MAX_OF_ONE = 40
"""The maximum number of units that one message contributes."""
MAX_CHARACTERS = 64_000
"""Characters of one message that are read: its beginning and its end. The text between them was pasted."""
OPEN, DONE = "[ ] ", re.compile(r"^\[[xX]\]\s*")
"""The beginnings of open and of finished tasks in a list."""
MAX_RULES = 400
"""How many rules are kept, and how many wishes and tasks besides: the earliest of each."""
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


# -- cues ----------------------------------------------------------------------------------------------------------

_I = re.IGNORECASE
# Phrases that only sound like a rule. They are removed before the search for cues.
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
    r"|\b(?:I|you|don['’]?t|can['’]?t|cannot|we)\s+remember\b|\bremember\s+(?:when|how we)\b"
    r"|不要紧|要不要|总是会?[报出失]",
    _I,
)
# One word boundary before all words, and Chinese in a pattern of its own, so that most positions fail at once.
_STRONG_EN = re.compile(
    r"\b(?:must(?:n['’]t)?\b|never\b|always\b|do not\b|don['’]?t\b|only\b|shall\b|ensure\b|remember\b|henceforth\b"
    r"|under no circumstances\b|at all times\b|no matter what\b|at no (?:point|time)\b"
    r"|without (?:exception|asking|my)\b"
    r"|make (?:very |absolutely |quite )?sure\b|be (?:sure|certain|careful)\b|(?:keep|bear) in mind\b|going forward\b"
    r"|from (?:now|here|this point|today|this moment) on|in (?:the )?future\b|as a rule\b|stop \w+ing\b|no longer\b"
    r"|any ?more\b|instead\b|(?:rules?|constraints?|requirements?|important|note)\s*(?:\d+\s*)?[:!：]\s*\S"
    r"|avoid\b|refrain\b|forbidden\b|prohibited\b|mandatory\b|compulsory\b|off[- ]limits\b|non-negotiable\b"
    r"|not\s+(?:be\s+)?(?:allowed|permitted|acceptable|touched|changed|modified)\b|(?:is|are|be) required\b"
    r"|required to\b|shouldn['’]?t\b|(?:isn|aren)['’]t (?:allowed|permitted|acceptable)\b"
    r"|(?:should|may|shall|ought) (?:not|never|always)\b|you (?:should|may|can['’]?t|cannot|can not)\b|cannot be\b"
    r"|unless\b|except\b|until I\b|(?:ask|warn|consult|inform|check with|confirm with|wait for) me\b"
    r"|tell me (?:before|first|when|if)\b|(?:call|address|refer to) me\b|remind me\b"
    r"|(?:forget|disregard|ignore|scrap|drop|cancel|revoke|withdraw|lift) (?:about )?(?:what|every|all|my|the|that)\b)"
    r"|^\w+ nothing\b|^no (?!problem|idea|worr|thank|way|luck|change|result|error|one\b)",
    _I,
)
_STRONG_ZH = re.compile(
    r"必须|必需|务必|不要|(?<![特分区类性级识个告判鉴差])别(?![的人处名国墅致扭])|请勿|切勿|勿(?=[在用将把改删动做])|禁止|严禁"
    r"|不得(?!不)|不许|不准(?!确)|不允许|不可以|不可(?=[以用改删在])|绝不|决不|绝对不|千万|切记|谨记|记住|牢记|记得(?!我|你|上次|吗)"
    r"|始终|永远|总是|一直(?:要|用|以|保持)|每次都?(?:要|先|必)|一律|统一(?:用|使|采)|只能|只用|只许|只可|只准|避免|提醒我"
    r"|仅(?:限|用|可|使|允)|只(?:回|输|使|修|改|写|给|看)|确保|保证(?!金)|从现在|从今|今后|以后(?:都|请|要|不|别|用|每|只|，)|往后"
    r"|不再|不用再|改用|改成|改为|换成|代替|而不是|除非|应当|不能(?=[用改删动有出使修超少在再把对让直随提泄])|作废"
    r"|(?:规则|约束|要求|注意|重要)(?:事项)?[:：]\s*\S|忘掉|(?:忘记|忽略|取消|撤销)(?:我|之前|刚才|关于)"
)
_POLITE = r"^(?:(?:please|pls|ok|okay|also|and|then),?\s+)*"
_WEAK_EN = re.compile(
    rf"{_POLITE}(?:use|stick to|follow|keep|prefer)\b"
    rf"|{_POLITE}(?:reply|respond|answer|speak|write|comment|format)\b.*\b(?:in|as)\b"
    r"|\b(?:should\b|prefer\b|whenever\b|every time\b|each time\b|at most\b|at least\b|no more than\b|no less than\b"
    r"|I(?:['’]d)? (?:want|need|expect|would like|like) (?:you|all|every|no)\b|to[- ]?do\b|afterwards\b|later on\b"
    r"|still (?:need|have to|to do|to be|open|missing)\b|follow up\b|deadline\b|due (?:by|on)\b"
    r"|(?:when|once) (?:that|this|it)(?:['’]s| is)? (?:done|ready|finished)\b|before (?:you|we|the release|merging)\b"
    r"|by (?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|tomorrow|tonight)\b)|^\[[ xX]\]\s",
    _I,
)
_WEAK_ZH = re.compile(
    r"请用|用[^，。；]{1,8}(?:回答|回复|编写|写|说|输出)|应该|尽量|最好|要求|不超过|最多|至少|待办|还没做|还要|接下来|之后再|回头再"
    r"|稍后|截止|请先"
)
_ASKS = re.compile(r"[?？][\"'”’)）]*$")
_ASKS_FOR = re.compile(r"^(?:(?:can|could|would|will) you|能不能|能否|可以|可否|请)", _I)
_LIST = re.compile(r"[:：]$")
_ABOUT_RULES = re.compile(
    r"\b(?:rules?|constraints?|requirements?|guidelines?|conventions?|to[- ]?dos?)\b"
    r"|规则|约束|要求|规范|约定|注意事项|待办",
    _I,
)


def find_rules(text: str) -> list[str]:
    """The rules and tasks in one user message, in order, including finished tasks (`[x]`)."""
    # Code goes before the text is cut: the end of a code block alone would look like the beginning of one.
    prose = _without_own_form(_CODE.sub("", text))
    if len(prose) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        return [*_rules_in(prose[:half]), *_rules_in(prose[-half:])][:MAX_OF_ONE]
    return _rules_in(prose)


def _rules_in(text: str) -> list[str]:
    rules: list[str] = []
    in_list = after_gap = False
    for line, bulleted in _lines(text):
        if not line:
            after_gap = True
            continue
        # A list continues over empty lines, a paragraph ends with one.
        in_list, after_gap = in_list and (bulleted or not after_gap), False
        units = (unit for unit in _sentences(line) if len(unit) <= LONGEST and _WORD.search(unit))
        rules += [unit for unit in units if in_list or is_cued(unit)]
        if _LIST.search(line):
            in_list = is_cued(line) or _ABOUT_RULES.search(line) is not None
    return rules[:MAX_OF_ONE]


def is_cued(unit: str) -> bool:
    """Whether a unit has the words of a rule or a task, even of a finished one."""
    if not (_sounds_strong(unit) or _sounds_weak(unit)):
        return False
    text = _REPORT.sub(" ", unit)
    if _ASKS.search(text):
        return _ASKS_FOR.search(text) is not None and _sounds_strong(text)
    return _sounds_strong(text) or _sounds_weak(text)


def is_weak(unit: str) -> bool:
    """Whether a unit is a wish or a task rather than a rule. If room is short, the latest of these are dropped."""
    return _sounds_weak(unit) and not _sounds_strong(_REPORT.sub(" ", unit))


def _sounds_strong(text: str) -> bool:
    return bool(_STRONG_EN.search(text) or (not text.isascii() and _STRONG_ZH.search(text)))


def _sounds_weak(text: str) -> bool:
    return bool(_WEAK_EN.search(text) or (not text.isascii() and _WEAK_ZH.search(text)))


# -- merging -------------------------------------------------------------------------------------------------------


def merge_rules(rules: Iterable[str], new: Iterable[str]) -> list[str]:
    """Old and new rules, in the order in which they were first said, each wording once.

    An open task is removed when the user says that it is done. Nothing else is removed: if a later sentence revokes or
    changes an earlier one, the model reads both in order and knows which one counts.
    """
    kept: dict[str, str] = {}
    room = {True: MAX_RULES, False: MAX_RULES}
    for is_new, unit in (*((False, unit) for unit in rules), *((True, unit) for unit in new)):
        done = DONE.match(unit) if is_new else None
        said = unit if done is None else OPEN + unit[done.end() :]
        plain, weak = _plain(said), is_weak(said)
        if done is None and plain not in kept and room[weak]:
            kept[plain] = said
            room[weak] -= 1
        elif done and kept.get(plain) == said:
            del kept[plain]
            room[weak] += 1
    return list(kept.values())


def _plain(unit: str) -> str:
    words = (word.strip(".,!;:?。，！；：？\"'`*") for word in unit.casefold().split())
    return " ".join(word for word in words if word and word not in _FILLERS)
