"""The one reader of refusals: what an error says of the request that it answers. No I/O.

Every server words this differently. An error is opened (`error_bodies`), and three things are found:

    sizes      what the request has too much of, in which unit, with the numbers that the error states
    subjects   what else it is about: a form, reasoning, tools, a compaction, ... (`_ROWS`)
    members    the members of the request that it names, of those that only the proxy has written

The rows of the ladder, the proxy's own calls and its searches ask for what they can mend. Nobody else reads errors.
A prompt that is too long may be condensed, and a window that is named is the true one; where a longer reply is asked
for than the model ever writes, no prompt is short enough. In doubt an error says nothing: the client then gets the
upstream's own error, as if there were no proxy. A quotation of the request may stand in any text, so a window whose
number is in the request is not believed (`without_quoted`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

from proxy.servers.error_bodies import BodyContent, is_error_body, read_body

# These statuses are about the credential, the rate or the model, never about the length of the prompt.
_NEVER = frozenset({401, 402, 403, 404, 405, 408, 409, 410, 429})

_SERVER_ERROR, _WORD = re.compile("5[0-9]{2}"), re.compile(r"\w+")
MAX_READ = 4_096  # bytes of an error in which its subjects are looked for; later some servers repeat the whole request


class Unit(StrEnum):
    """What a request may have too much of."""

    PROMPT = "tokens of the prompt"  # perhaps together with those of the reply that is asked for
    REPLY = "tokens of the reply"
    RATE = "tokens of a minute"  # one request has more than may come in all of it, so no wait helps
    TIER = "tokens of a price tier"
    MESSAGES = "number of messages"
    CHARACTERS = "characters of one string"
    PAGES = "pages of documents"
    PICTURES = "pictures"
    BYTES = "bytes"


CONDENSED = (Unit.PROMPT, Unit.RATE, Unit.TIER, Unit.MESSAGES, Unit.BYTES)
"""The units of which a condensed view has less; only the first is about the window."""


class Size(NamedTuple):
    """A size that is refused; the numbers are as the server counts them, None if it states none."""

    unit: Unit
    limit: int | None = None  # the most that the server takes; of the prompt's tokens, its window
    had: int | None = None  # what the request has
    reply: int | None = None  # the tokens of the reply that was asked for


class Subject(StrEnum):
    """What an error may be about, beside sizes. The first ones are members of a profile."""

    ALTERNATE_ROLES = "alternate_roles"
    MIDDLE_SYSTEM = "middle_system"
    CONTEXT_MANAGEMENT = "context_management"
    BOUND_REASONING = "reasoning that is bound to what was before it"
    REQUIRED_REASONING = "reasoning that is missing"
    TOOLS = "tools"
    OPAQUE_HEAD = "a compaction in the list"
    TRIGGER = "a trigger for a compaction"
    COMPACT_PATH = "an unknown endpoint"
    COMPACTION = "an unknown form of compaction"
    FOREIGN_SYSTEM = "a system prompt that is not the client's"
    ROLES = "roles"
    STREAM = "a stream"
    LIMIT = "the limit of the reply"


class Refusal(NamedTuple):
    """What an error says."""

    status: int = 0  # 0: nothing was refused, or nobody has looked
    sizes: tuple[Size, ...] = ()
    subjects: frozenset[Subject] = frozenset()
    members: frozenset[str] = frozenset()
    is_server_error: bool = False  # whether the server gives itself the blame, by a status or a code of 500 or more

    def size(self, *units: Unit) -> Size | None:
        """The size that is refused in one of these units."""
        return next((size for size in self.sizes if size.unit in units), None)

    @property
    def condensed(self) -> Size | None:
        """The size that is refused of which a condensed view has less; that of the window goes before all others."""
        return next(filter(None, map(self.size, CONDENSED)), None)

    def without_quoted(self, request: bytes) -> Refusal:
        """The refusal without a window whose number stands in the refused request, because the error may quote it."""
        size = self.size(Unit.PROMPT)
        if size is None or not any(f"{size.limit:{form}}".encode() in request for form in ("d", ",") if size.limit):
            return self
        return self._replace(sizes=tuple(each._replace(limit=None) if each is size else each for each in self.sizes))


NO_REFUSAL = Refusal()


def read(status: int, body: bytes, *, answer: re.Pattern[bytes] | None = None, ours: Iterable[str] = ()) -> Refusal:
    """What a reply with this status and body refuses; `NO_REFUSAL` if it is no error.

    A reply with a status below 400 is an error only if its body, or its event, is one, which `answer` helps to tell
    (`Endpoint.answer`). `ours` are the members of the request that only the proxy has written.
    """
    if status < HTTPStatus.BAD_REQUEST and (answer is None or not is_error_body(body, answer=answer)):
        return NO_REFUSAL
    said = body[:MAX_READ].decode("utf-8", "replace")
    is_late = status < HTTPStatus.BAD_REQUEST
    subjects = frozenset(row.subject for row in _ROWS if row.is_in(HTTPStatus.OK if is_late else status, said))
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not body.strip():
        return Refusal(status, (Size(Unit.BYTES), Size(Unit.PROMPT)), subjects)
    content = read_body(body)
    members = _named(content, ours) if status in _NAMING or is_late else frozenset[str]()
    length = None if status in _NEVER else _length(content)
    sizes = tuple(filter(None, (*_other_sizes(HTTPStatus.OK if is_late else status, content), length)))
    # An event of a stream has its status in the error.
    blamed = content.codes if is_late else {str(status)}
    return Refusal(status, sizes, subjects, members, is_server_error=any(map(_SERVER_ERROR.fullmatch, blamed)))


def _length(content: BodyContent) -> Size | None:
    """The size in tokens that an error refuses."""
    unit = refused_unit(content.codes, content.texts)
    if unit is None:
        return None
    window, prompt, reply = numbers_in(content.numbers, content.texts)
    # If prompt and reply together are refused and the prompt is a small part, the reply is to blame.
    if unit is Unit.REPLY or _is_mostly_reply(window, prompt, reply):
        return Size(Unit.REPLY, reply=reply)
    return Size(Unit.PROMPT, window, prompt, reply)


def _is_mostly_reply(window: int | None, prompt: int | None, reply: int | None) -> bool:
    if not window or not reply:
        return False
    return reply >= window or (prompt is not None and reply > window * 3 // 4 and prompt <= window // 4)


def _named(content: BodyContent, ours: Iterable[str]) -> frozenset[str]:
    """Those of our own members that an error names; what is sent then, a request or a question, does without them."""
    return frozenset(ours).intersection(_WORD.findall(" ".join(content.texts)))


# -- subjects --------------------------------------------------------------------------------------------

WRONG = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""The statuses with which servers refuse a request that they find wrong in some way."""
FORM = (*WRONG, HTTPStatus.INTERNAL_SERVER_ERROR)
"""Those with which they refuse its form; some chat templates fail with 500."""
_NAMING = (*FORM, HTTPStatus.NOT_FOUND)
_NO_PATH = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
_CREDENTIAL = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_TOOLS = (*FORM, HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED)


class _Row(NamedTuple):
    """The words by which an error is known to be about a subject."""

    subject: Subject
    statuses: Sequence[int]  # 200 for an error under a good status
    says: re.Pattern[str]
    also: re.Pattern[str]
    unless: re.Pattern[str]

    def is_in(self, status: int, said: str) -> bool:
        if status not in self.statuses or not self.says.search(said):
            return False
        return bool(self.also.search(said)) and not self.unless.search(said)


def _row(subject: Subject, statuses: Sequence[int], says: str, also: str = "", unless: str = r"(?!)") -> _Row:
    return _Row(subject, statuses, *(re.compile(each, re.IGNORECASE) for each in (says, also, unless)))


# The error of a request that has reasoning in its messages. The lesson holds for one tenant, and the next refusal
# corrects it; so the words need not be exact.
_REASONING = r"reasoning|thinking|thought|思考|推理"
_PARAMETER = (  # words of errors about the member of a request that switches reasoning on
    r"budget|effort|temperature|tool_choice|max_tokens|extra inputs|(?:thinking|reasoning)\.(?:type|enabled)"
    r"|to be disabled|not (?:supported|permitted|allowed|enabled)|unsupported|unknown|unrecogni[sz]ed|invalid value"
)
_BOUND_WORDS = (
    r"(?<!thought[ _-])signature|corrupt|invalid thought|bound to|prefix|tamper|\b(?:modif|alter)(?:y|ied|ed)\b"
    r"|签名|thought[ _-]?signature[^.]{0,60}(?:not valid|invalid|mismatch|fail|verif)"
    r"|(?:different|another|other|not belong\w{0,9}(?: to)?(?: th\w{1,9})?)"
    r" (?:conversation|context|prompt|history|request)"
)
_REQUIRED_WORDS = (
    r"missing|\b(?:must|should|lacks?|requires?|required|expected|needs?|ha(?:s|ve) to)\b|without|omitted"
    r"|absent|not (?:found|present|provided|included|passed|sent|returned)|必须|需要|缺少|缺失|回传|传回"
)
_UNKNOWN_PATH = r"\b(?:unexpected|unknown|unsupported|invalid|no such) (?:endpoint|path|route|url)\b"
_ROWS = (
    _row(
        Subject.ALTERNATE_ROLES,
        FORM,
        r"\b(?:roles?|turns?|requests?|messages?|conversations?|user)\b[^.]{0,80}\balternat"
        r"|\balternat\w{0,20}[^.]{0,80}\b(?:roles?|user|assistant)\b"
        r"|\b(?:successive|consecutive)\b[^.]{0,40}\b(?:user|assistant|role|messages?)\b"
        r"|unexpected role\W{1,4}(?:user|assistant)\W{1,4}after role",
    ),
    _row(
        Subject.MIDDLE_SYSTEM,
        FORM,
        r"\bsystem\W{0,3}(?:message|role|prompt)s?\b[^.]{0,60}\b(?:beginning|first|start|precede)\b"
        r"|unexpected role\W{1,4}system\W{1,4}after role"
        r"|only the first message can\b[^.]{0,20}\bsystem",
    ),
    _row(Subject.CONTEXT_MANAGEMENT, FORM, r"\bcontext_management\b"),
    _row(Subject.BOUND_REASONING, (HTTPStatus.OK, *FORM), _REASONING, _BOUND_WORDS, unless=_PARAMETER),
    _row(Subject.REQUIRED_REASONING, (HTTPStatus.OK, *FORM), _REASONING, _REQUIRED_WORDS, unless=_PARAMETER),
    _row(Subject.TOOLS, _TOOLS, r"tool|function"),
    _row(Subject.OPAQUE_HEAD, WRONG, r"compaction|encrypted[ _]content"),
    _row(Subject.TRIGGER, (*FORM, *_NO_PATH), r"compaction_trigger"),
    _row(Subject.COMPACT_PATH, _NO_PATH, "", unless=r"\bmodel"),  # a model may be what is not found
    _row(Subject.COMPACT_PATH, (HTTPStatus.BAD_REQUEST, *_NO_PATH), _UNKNOWN_PATH),
    _row(
        Subject.COMPACTION,
        WRONG,
        r"compaction(?:_trigger)?\W[^.]{0,80}(?:not permitted|not supported|unknown|unrecogni[sz]ed|unsupported)"
        r"|(?:invalid value|unknown|unsupported|unrecogni[sz]ed|unexpected)[^.]{0,80}compaction",
        unless=r"\bcompaction_(?!trigger)[a-z_]+",  # the vendor's own codes: it knows the form
    ),
    _row(Subject.FOREIGN_SYSTEM, _CREDENTIAL, r"authori[sz]ed for use with|instructions are not valid"),
    _row(Subject.ROLES, FORM, r"\bsystem\b|\bdeveloper\b|\broles?\b|\balternat"),
    _row(Subject.STREAM, _NAMING, r"\bstream|流式"),
    _row(Subject.LIMIT, FORM, r"token|maximum|too (?:large|high|long|big)|exceed|context|length"),
)


# -- other units -----------------------------------------------------------------------------------------

_TOO_LARGE = (*WRONG, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_TOO_MANY = (HTTPStatus.OK, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.TOO_MANY_REQUESTS)
_OF_TOKENS = re.compile(r"per (?:min|minute|hour|day)\b|\b[rt]pm\b|\btokens?\b")
_NUMBER = r"([1-9][\d,]{0,20})"
_CHARACTERS = (
    r"\b(?:messages|input)\[\d{1,9}\][\w.\[\]]{0,60}?\b(?:content|text|output|arguments|input): string too long"
    rf"\. expected a string with maximum length {_NUMBER}, but got a string with length {_NUMBER}"
)
_MESSAGES = (
    r"\b(?:messages|input): array too long\. expected an array with maximum length"
    rf" {_NUMBER}, but got an array with length {_NUMBER}"
)
_RATE_LIMIT = rf"\b(?:tokens?|tp[md])\b.{{0,80}}?\blimit:? {_NUMBER}.{{0,60}}?\brequested:? {_NUMBER}"
_PAGES = rf"(?:maximum|limit) of {_NUMBER} pdf pages|too many pdf pages"
_PICTURES = (
    r"at most ([1-9]\d{0,3}) images?(?:\(s\))? may be provided"
    r"|too many images(?: and documents)?: [\d +]{1,20}> ?(\d{1,4})\b|too much media: [\w +]{1,60}> ?(\d{1,4})\b"
    r"|\d images, exceeding the maximum of (\d{1,4})\b|image count \d{1,4} exceeds limit (\d{1,4})\b"
    r"|can only include (\d{1,4}) image links"
    r"|too many images\b(?:.{0,60}?\b(?:max(?:imum)?(?: is| of)?|up to|at most) (\d{1,4})\b)?"
    r"|many-image requests"
)
_BYTES = (
    r"request_too_large|(?:request|payload|body|entity|content)[^.;]{0,40}(?:too large|exceeds? the max)"
    r"|(?:request|payload|body)[^.;]{0,60}exceed[^.;]{0,40}(?:size|bytes|[mk]i?b\b)"
    r"|^request too long$|request body: length limit exceeded"
)
_UNITS: Sequence[tuple[Unit, Sequence[int], re.Pattern[str]]] = (
    (Unit.CHARACTERS, WRONG, re.compile(_CHARACTERS)),
    (Unit.MESSAGES, WRONG, re.compile(_MESSAGES)),
    (Unit.RATE, _TOO_MANY, re.compile(_RATE_LIMIT)),
    (Unit.TIER, (HTTPStatus.TOO_MANY_REQUESTS,), re.compile("extra usage is required for long context")),
    (Unit.PAGES, _TOO_LARGE, re.compile(_PAGES)),
    (Unit.PICTURES, _TOO_LARGE, re.compile(_PICTURES)),
    (Unit.BYTES, _TOO_LARGE, re.compile(_BYTES)),
)
"""What vendors and servers are known to say of a request that is too large in some unit, and with which statuses.

The first number is the limit, a second one what the request has: only if that is more is it refused for its size.
"""
MANY = 20  # pictures from which a vendor's stricter rule about their size holds ("many-image requests")


def _other_sizes(status: int, content: BodyContent) -> Iterator[Size]:
    """What an error refuses in other units than tokens of window and reply, the most exact unit first."""
    said = (*content.texts, *content.codes)
    for unit, statuses, says in _UNITS if status in _TOO_LARGE or status in _TOO_MANY else ():
        texts = said if unit is Unit.RATE else [each for each in said if not _OF_TOKENS.search(each)]
        match = next(filter(None, map(says.search, texts)), None) if status in statuses else None
        if match is not None:
            numbers = [int(each.replace(",", "")) for each in match.groups() if each]
            limit, had = next(iter(numbers), None), next(iter(numbers[1:]), None)
            if limit is None or had is None or limit < had:
                yield Size(unit, MANY if match[0].startswith("many-image") else limit, had)


# -- tokens ----------------------------------------------------------------------------------------------
#
# Codes are exact, but few servers send them; a code that names another error outweighs all words. Words vary, so the
# patterns look for their form: something about a prompt (tokens, a context length) is compared with a bound. Three
# questions are asked, in this order: Is the error about rates or payment? Is it about the length of the reply? Is it
# about the length of the prompt?
#
# The numbers are the window, the tokens of the prompt, and the tokens that were requested for the reply. The first
# pattern that matches gives a number; the most reliable patterns come first. A number that cannot be a window, such as
# a status, a year or a request id, is ignored.
#
# Every repetition with something after it is bounded, so that the cost grows in proportion to the length of a text.

_INPUT_CODES = frozenset(
    """
    context_length_exceeded context_window_exceeded model_context_window_exceeded context_exceeded
    exceed_context_size_error exceed_context_size contextwindowexceedederror context_length_exceeded_error
    model_max_prompt_tokens_exceeded tokens_limit_reached tokens_too_long prompt_too_long input_too_long
    max_context_length_exceeded contextlengthexceeded context_overflow context_limit_exceeded prompt_tokens_exceeded
    input_tokens_exceeded
    """.split()  # noqa: SIM905 - a table of words
)
_OTHER_CODES = frozenset(
    """
    rate_limit_exceeded rate_limit_error ratelimiterror insufficient_quota tokens_per_minute throttlingexception
    string_above_max_length array_above_max_length billing_error overloaded_error
    """.split()  # noqa: SIM905 - a table of words
)

# Codes and words of errors about one value, which such an error quotes. The value may be any text.
_VALUE_CODES = re.compile(
    r"(?:invalid|unsupported|unknown|missing|missing_required)_(?:value|type|enum|tool|model|role)"
    r"|\w{0,80}_not_found(?:_error)?|\w{1,80}_(?:parsing|type)|literal_error|enum|missing|extra_forbidden"
)
_VALUE_WORDS = re.compile(
    r"\bdoes(?: not|nt) exist\b|\bnot found\b|\binvalid value\b|\bsupported values are\b|\binput should be \w"
    r"|\btype: \w{1,40}, loc: |\binput(?:_value)?[:=] ?(?!\d)"
)

_RATE = re.compile(
    r"\bper[ -_]?(?:min|minute|hour|day|second|month)\b|\b[ot]?[rt]p[md]\b|rate[ _-]?limit"
    r"|quota|throttl|too many requests"
    r"|\bcredits?\b|afford|\bbalance\b|\bbilling\b|\bpayment\b|please wait|overloaded|max budget|spend"
    r"|\btokens? (?:has |have )?(?:expired|invalid)|\bapi[ _-]key\b|\b(?:auth\w{0,20}|access|bearer|refresh) tokens?\b"
    r"|限流|频率|速率|余额|欠费|每分钟"
)

_REPLY = (
    r"(?:max(?:imum)?[_ ]?(?:completion|new|output|gen|generated?)?[_ ]?(?:tokens|len)(?:_to_sample)?\b"
    r"|maxoutputtokens)"
)
_OUTPUT = (
    _REPLY + r"[^.;]{0,60}?(?:too (?:large|big|high|long|many)|exceed|must be|should be|cannot be|invalid|out of"
    r"|greater than|larger than|less than|at most|> ?\d|<= ?\d|supported range|range)",
    r"(?:range of|invalid|value for|reduce|lower|decrease|unsupported|illegal) (?:the )?(?:value (?:of|for) )?"
    + _REPLY,
    r"(?:completion|output|new|generated) tokens?[^.;]{0,40}(?:exceed|too (?:large|many)|at most|maximum|limit)",
    r"(?:at most|maximum (?:allowed )?number of|supports? up to|limit of) ?[\d,]{0,20} (?:completion|output) tokens",
    r"maximum (?:output )?tokens you requested exceed",
    r"max_tokens.{0,12}(?:参数|非法|超出|超过)",
)
# The error adds the requested reply to the prompt, so shortening the prompt helps.
_TOGETHER = (
    r"(?:input|inputs|prompt|query|messages?)\b[^.;]{0,60}(?:\+|\band\b|\bplus\b)[^.;]{0,40}" + _REPLY,
    r"\d (?:tokens )?(?:in|of|from) (?:the |your )?(?:messages|prompt|input|text input)\b",
    r"(?:request|prompt|input)[^.;]{0,30}(?:has|have|contains?) (?:at least )?[\d,]{1,20} (?:input |prompt )?tokens",
    r"sum of (?:the )?prompt",
    r"(?:passed|sent|got|given) [\d,]{1,20} input tokens",
    r"input and (?:maximum )?output tokens",
    _REPLY + r"[^.;]{0,40}(?:got |\()-\d",  # the room that the prompt leaves for the reply
)

_BOUND = (
    r"(?:context[ _-]?(?:length|window|size|limit|len)\b|\bn_ctx\b|\bcontext\b(?! (?:deadline|cancel))"
    r"|max_(?:model_len|seq_len|seq_length|num_tokens|input_tokens|input_length|context"
    r"|position|prompt|total_tokens)\w{0,20}"
    r"|(?:max(?:imum)?|allowed|configured|supported)[^.;]{0,24}?(?:input|prompt|model|sequence|context)"
    r" ?(?:sequence )?(?:length|tokens?|size|limit|window)"
    r"|max(?:imum)? (?:allowed )?(?:number of )?(?:input |prompt |total )?tokens(?: allowed)?"
    r"|(?:tokens?|input|prompt)[ _](?:length )?limit\b|(?:limit|maximum) of [\d,]{1,20} tokens"
    r"|max(?:imum)? seq\w{0,20} len\w{0,20}|max length\b|max_len\b|session_len\b|\b(?:kv[ -]?)?cache size)"
)
_SIZE = (
    r"(?:\btokens?\b|\bn_(?:keep|past|tokens)\b|\bsequence length\b|\b(?:prompt|input|inputs|conversation|request"
    r"|messages?|query|history)"
    r"(?: text| token| tokens| sequence| data)?(?: length| size| count)?)"
)
_OVER = (
    r"(?:exceed\w{0,20}|overflow\w{0,20}|(?:too|is) (?:long|large|big)(?:er)?(?: than| for)?|(?:longer"
    r"|larger|greater|bigger|more)"
    r" than|>=?|beyond|over\b|surpass\w{0,20}|does ?n[o]?t fit|do not fit|cannot fit|not enough"
    r"|must be (?:less|smaller|<)|should be (?:less|smaller|<)|should not|cannot exceed|reached|ran out of)"
)
_INPUT = (
    rf"{_SIZE}[^;]{{0,90}}?{_OVER}[^.;]{{0,60}}?{_BOUND}",
    rf"{_BOUND}[^.;]{{0,40}}?(?:exceed\w{{0,20}}|overflow\w{{0,20}}|reached|is not enough)",
    (
        r"(?:exceed\w{0,20}|overflow\w{0,20}|over|reached|beyond)[^.;]{0,40}"
        r"(?:context[ _-]?(?:length|window|size|limit)|n_ctx)"
    ),
    r"contextwindowexceeded|context[ _]?length[ _]?exceeded|context[ _]window[ _]exceeded",
    (
        r"max(?:imum)? (?:context|prompt|input|sequence|model) (?:length|window|size)(?: of "
        r"[^.;]{0,60})? (?:is|of) [\d,]{1,20}"
    ),
    r"maximum context length",
    r"\b(?:prompt|input|conversation|context)(?: text| tokens?| token length| length)?(?: is| are| was)? too long",
    (
        r"\b(?:request|prompt|messages?|conversation|input)(?: body)?(?: is| are)? too (?:large|big|long) for"
        r"[^.;]{0,60}(?:model|context|window)"
    ),
    (
        r"(?:too many|number of) (?:input |prompt )?tokens(?! per)[^.;]{0,60}(?:exceed|limit|max"
        r"|cannot|greater|larger|model)"
    ),
    r"^too many (?:input |prompt |total )?tokens",
    (
        r"(?:reduce|shorten|decrease|trim)[^.;]{0,20}(?:length|size|number of tokens) (?:of|in) (?:the |your )?"
        r"(?:input |prompt )?(?:messages?|prompt|input|conversation|either|context)"
    ),
    r"range of input length|input length should be",
    (
        r"(?:input|prompt|token)s?(?: token)?s?(?: count| length)?[^.;]{0,40}exceed\w{0,20}"
        r"[^.;]{0,40}(?:limit|max\w{0,20}|token|allowed)"
    ),
    r"exceed\w{0,20} (?:the )?model token limit",
    r"\btokens?\b[^.;]{0,60}exceed\w{0,20} (?:the )?limit of [\d,]{1,20}",
    r"(?:token count|tokens?)[^.;]{0,12} [\d,]{1,20},? but[^.;]{0,40}(?:supports?|limit|max\w{0,20}|only|allow)",
    r"must have (?:less|fewer) than [\d,]{1,20} tokens",
    r"tokens? must be no more than [\d,]{1,20}",
    r"prompt sequence length is (?:greater|longer) than [\d,]{1,20}",
    r"inputs? tokens? ?\+ ?max_\w{1,40} must be",
    r"prompt_tokens[^.;]{0,30}must be less",
    r"(?:tokens to keep|keep the first|n_keep)[^.;]{0,60}(?:greater|overflow|>=|context)",
    r"(?:limit|max|maximum)[^.;0-9]{0,20}[\d,]{1,20} tokens?[^.;]{0,40}(?:prompt|input|request|messages)",
    r"(?:request|prompt|input)[^.;]{0,40}too large[^;]{0,50}(?:max|limit)[^.;0-9]{0,12}[\d,]{1,20} tokens",
    r"[\d,] tokens? >=? [\d,]",
    r"[\d,] tokens?,? (?:but|which|while)[^.;]{0,60}(?:context|limit|max\w{0,20}) [^.;]{0,20}[\d,]{1,20}",
    (
        r"context (?:length|size|window)[^.;]{0,30} is [\d,]{1,20}k?(?: tokens)?,?(?: but| and| you)?[^.;]{0,30}"
        r"(?:request|has|have|got|given|provided|sent)\w{0,20}[^.;]{0,12}\d"
    ),
    _REPLY + r"[^.;]{0,40}(?:got |\()-\d",
    r"^token limit$",
    (
        r"(?:上下文|输入|提示词|提示|prompt|消息|对话|tokens?)[^。;]{0,16}(?:过长|超长|太长|超过|超出|超限|大于)"
        r"(?![^。;]{0,12}(?:频率|次数|并发|字节))"
    ),
)

# Sizes of things other than a prompt in tokens.
_OTHER_SIZES = re.compile(
    r"\b(?:array|images?|audio|video|files?|pdf|pages?|pixels?|megapixels?|bytes?|[kmg]i?b|characters?|chars|seconds"
    r"|data-?uri|deadline|properties|items|tool_calls?|stop sequences?|batch size|max_retries|queue|connections?"
    r"|cache_control|embeddings? dimension\w{0,20}|tool name|function name)\b"
)
_PROMPT = re.compile(r"\btokens?\b|context[ _-]?(?:length|window|size|limit)|n_ctx|上下文")

_ANY_OUTPUT, _ANY_TOGETHER, _ANY_INPUT = (re.compile("|".join(each)) for each in (_OUTPUT, _TOGETHER, _INPUT))


def refused_unit(codes: frozenset[str], texts: Iterable[str]) -> Unit | None:
    """The part that does not fit according to an error; None if the error is about something else."""
    if codes & _INPUT_CODES:
        return Unit.PROMPT
    if codes & _OTHER_CODES or any(_RATE.search(text) for text in texts):
        return None
    found = {_meaning(text) for text in texts}
    by_code = any(_VALUE_CODES.fullmatch(code) for code in codes)
    if by_code or any(_VALUE_WORDS.search(text) for text in texts):
        return Unit.REPLY if Unit.REPLY in found else None
    return Unit.PROMPT if Unit.PROMPT in found else next(filter(None, found), None)


def _meaning(text: str) -> Unit | None:
    if _OTHER_SIZES.search(text) and not _PROMPT.search(text):
        return None
    if _ANY_OUTPUT.search(text) and not _ANY_TOGETHER.search(text):
        return Unit.REPLY
    return Unit.PROMPT if _ANY_INPUT.search(text) else None


# -- the numbers -----------------------------------------------------------------------------------------

MIN_WINDOW, MAX_WINDOW = 512, 10_000_000  # tokens that a window may have
_YEARS_AND_CODES = {2013, *range(2020, 2036)}

_N = r"(?<![\d.,])(\d{1,3}(?:,\d{3}){1,6}(?!\d)|\d{1,20}(?!\d|k\b))(?:\.0{1,9})?"
_WINDOW_KEYS = (
    "n_ctx", "max_model_len", "max_context_length", "context_length", "context_window", "max_input_tokens",
    "max_prompt_tokens", "max_seq_len", "context_limit", "max_tokens_allowed",
)  # fmt: skip
_COUNTED_KEYS = ("n_prompt_tokens", "prompt_tokens", "input_tokens", "num_prompt_tokens", "token_count")

_NO_REPLY = r"(?!_?(?:tokens|new|completion|output|gen)\b)"
_CONTEXT = r"(?:context[ _-]?(?:length|window|size|limit|len)|\bn_ctx)"
_WINDOWS = (
    rf"\d[\d,]{{0,20}} \+ \d[\d,]{{0,20}} >=? {_N}",
    rf"\d[^.;]{{0,20}}? >=? (?:n_ctx:? ?)?\(?{_N}",
    rf"{_CONTEXT}(?: limit)? ?\(?[=:]?(?: is| of)?(?: only)? ?\(?{_N}",
    rf"{_N} (?:tokens )?(?:maximum|max) context",
    (
        rf"max(?:imum)? (?:context|prompt|input|model|sequence|allowed input"
        rf"|allowed prompt)(?: length| window| size| tokens?)?"
        rf"(?: length)?(?: of [a-z][^;]{{0,60}}? is)?(?: is|:| of|=)? ?\(?{_N}"
    ),
    rf"{_CONTEXT}(?:(?!tokens|number|requested)[^.;\d]){{0,40}}(?:is|of|to|only|limit|maximum|:|=|\() ?\(?{_N}",
    (
        rf"max_(?:seq_len|model_len|num_tokens|input_length|position_embeddings|total_tokens"
        rf"|prompt_tokens)\w{{0,20}}\)? ?[(=:]{{0,9}} ?{_N}"
    ),
    rf"\[ ?[01], ?{_N} ?\]",
    rf"(?:must be|should be) (?:<=?|less than|at most|no more than) {_N}",
    rf"sequence length is (?:greater|longer) than {_N}",
    (
        rf"\d (?:tokens )?(?:exceeds?|is (?:longer|larger|greater) than|exceeded|but|while|when"
        rf"|larger than)[^.;\d]{{0,70}}{_N}"
    ),
    rf"(?:fewer|less) than {_N} tokens",
    rf"(?:最大|上限|限制|上下文)[^。;,，\d]{{0,16}}{_N}",
    (
        rf"(?:limit|limited to|supports?(?: up to)?|cannot exceed|not exceed|up to|at most"
        rf"|max(?:imum)?(?: size)?){_NO_REPLY}"
        rf"(?:(?!\bby )[^.;\d]){{0,40}}{_N}"
    ),
)
_COUNTS = (
    (
        rf"\(?{_N} (?:tokens )?(?:in|of|from) (?:the |your )?(?:messages|prompt|text input|input messages|input)\b"
        rf"(?:[,;] {_N} (?:in|of) (?:the )?(?:functions?|tools?|tool input))?"
    ),
    rf"(?:has|have|contains?|passed|with|sent) {_N} (?:input|prompt) tokens",
    rf"{_N} \+ \d[\d,]{{0,20}} >=? \d+",
    (
        rf"(?:resulted in|contains?|has|have|received|given:?|requested:?|current length is|take"
        rf"|total of|got|requested about"
        rf"|input tokens?|prompt tokens?) (?:over |about )?{_N}(?! output)"
    ),
    (
        rf"(?<!output )(?:prompt|inputs?|request|messages?|query|count|tokens?|length|prompt_tokens"
        rf"|input_ids size|too long)"
        rf"(?: tokens?| token count| length| is| of| with"
        rf"| was){{0,6}}:? ?\(?(?<!max_tokens )(?<!new_tokens ){_N}(?: tokens)?\)?"
        rf"(?=;| tokens?| is| exceeds?| in total| >|,|\)|\.? ?should| should| but| must| cannot| which|$)"
    ),
    rf"{_N} (?:tokens? )?>=? ",
    rf"{_N} tokens?\)? (?:exceeds?|is longer|which)",
)
_ASKED = (
    rf"{_N} (?:tokens )?(?:in|for|of) (?:the |your )?(?:completion|output|response|generation)",
    rf"requested {_N} output tokens",
    rf"\d \+ {_N} >=? \d",
    rf"{_N} max_new_tokens",
    rf"max_(?:new_|completion_|output_)?tokens(?!\W{{0,9}}-\d)[^.;\d]{{0,40}}{_N}",
)
_WINDOW_PATTERNS, _COUNT_PATTERNS, _ASKED_PATTERNS = (
    tuple(map(re.compile, patterns)) for patterns in (_WINDOWS, _COUNTS, _ASKED)
)


def numbers_in(numbers: Mapping[str, int], texts: Iterable[str]) -> tuple[int | None, int | None, int | None]:
    """The window and the tokens of prompt and reply that an overflow error states."""
    windows = [*_values_of(numbers, _WINDOW_KEYS), *_matches(texts, _WINDOW_PATTERNS)]
    plausible = (each for each in windows if MIN_WINDOW <= each <= MAX_WINDOW and each not in _YEARS_AND_CODES)
    window = next(plausible, None)
    counts = _positive([*_values_of(numbers, _COUNTED_KEYS), *_matches(texts, _COUNT_PATTERNS)])
    counted = next((each for each in counts if each != window), None)
    return window, counted, next(_positive(_matches(texts, _ASKED_PATTERNS)), None)


def _values_of(numbers: Mapping[str, int], keys: Iterable[str]) -> Iterator[int]:
    return (numbers[key] for key in keys if key in numbers)


def _matches(texts: Iterable[str], patterns: Sequence[re.Pattern[str]]) -> Iterator[int]:
    """The number in each match; parts of a prompt that are counted separately are added up."""
    for text in texts:
        for pattern in patterns:
            for found in pattern.finditer(text):
                yield sum(int(part.replace(",", "")) for part in found.groups() if part)


def _positive(numbers: Iterable[int]) -> Iterator[int]:
    return (number for number in numbers if 0 < number <= MAX_WINDOW * 10)
