"""Recognises an upstream's error that a prompt does not fit, and reads the numbers in it. No I/O.

Every server words this differently. It is recognised in two steps: first all texts, codes and numbers of the body are
collected, however deeply they are wrapped; then their meaning is found.

A gateway puts the provider's body into its own: as an object, as JSON in a string, as text with a prefix. Servers send
objects, arrays, bare strings and events. Quotations of the request are skipped, so that a conversation about context
lengths is not mistaken for an overflow. A quotation may stand in any text, so a window whose number is in the request
is not believed (`Refusal.without_quoted`).

    input overflow    the prompt is too long: condensing it helps, and a window that is named is the true one
    output cap        a longer reply is asked for than the model ever writes: no prompt is short enough
    anything else     None: rate limits, budgets, too many images, a body that is too large in bytes, broken requests

In doubt the result is None: the client then gets the upstream's own error, as if there were no proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple

from proxy.values import json_or_none


class RefusedPart(StrEnum):
    """The part that does not fit: the prompt (perhaps together with the requested reply), or the reply alone."""

    INPUT = "input"
    OUTPUT = "output"


# These statuses are about the credential, the rate or the model, never about the length of the prompt.
_NEVER = frozenset({401, 402, 403, 404, 405, 408, 409, 410, 429})

_SERVER_ERROR = re.compile("5[0-9]{2}")
_ERROR = re.compile(rb'(?<!\\)"errors?"(?!\s*:\s*null)|^event:\s*error', re.MULTILINE)
"""A key, a value or an event. A text may say "error" too: its quotation marks are escaped. Null is no error."""


class Refusal(NamedTuple):
    """A request that does not fit; all numbers are tokens as the upstream counts them, None if it states none."""

    kind: RefusedPart
    window: int | None = None  # the context length
    prompt_tokens: int | None = None  # the length of the prompt
    reply_tokens: int | None = None  # the length of the reply that was asked for
    is_server_error: bool = False  # whether the server gives itself the blame, by a status or a code of 500 or more
    is_silent: bool = False  # whether it has no words, so that a gateway may have refused the bytes

    def without_quoted(self, request: bytes) -> Refusal:
        """The refusal without a window whose number stands in the refused request, because the error may quote it."""
        window = self.window
        is_quoted = window is not None and any(f"{window:{form}}".encode() in request for form in ("d", ","))
        return self._replace(window=None) if is_quoted else self


def recognise(status: int, body: bytes, *, answer: re.Pattern[bytes]) -> Refusal | None:
    """The refusal in a reply with this status and body; None if the reply does not refuse the request for its size.

    A reply with a status below 400 is a refusal only if its body, or its event, is an error; `answer` is that of the
    endpoint (`Endpoint.answer`).
    """
    if status in _NEVER:
        return None
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not body.strip():
        return Refusal(RefusedPart.INPUT, is_silent=True)
    if status < HTTPStatus.BAD_REQUEST and not is_error_body(body, answer=answer):
        return None
    content = read_body(body)
    part = refused_part(content.codes, content.texts)
    if part is None:
        return None
    window, prompt, reply = numbers_in(content.numbers, content.texts)
    # If prompt and reply together are refused and the prompt is a small part, the reply is to blame.
    if part is RefusedPart.OUTPUT or _is_mostly_reply(window, prompt, reply):
        return Refusal(RefusedPart.OUTPUT, reply_tokens=reply)
    # An event of a stream has its status in the error.
    blamed = {str(status)} if status >= HTTPStatus.BAD_REQUEST else content.codes
    return Refusal(RefusedPart.INPUT, window, prompt, reply, any(map(_SERVER_ERROR.fullmatch, blamed)))


def _is_mostly_reply(window: int | None, prompt: int | None, reply: int | None) -> bool:
    if not window or not reply:
        return False
    return reply >= window or (prompt is not None and reply > window * 3 // 4 and prompt <= window // 4)


# -- what a body says ------------------------------------------------------------------------------------

MAX_TEXT, MAX_TEXTS = 8_000, 16_000  # characters that are read of one text, and of all; errors come to the point early
DEEPEST = 32

# Members in which validators and gateways quote the request, the reply or themselves.
_QUOTED = frozenset(
    """
    input inputs messages prompt prompts body request content contents tools choices delta output text arguments
    failed_generation generated_text headers stack stacktrace traceback url loc user
    """.split()  # noqa: SIM905 - a table of words
)
_CODES = frozenset(("code", "type", "error_type", "error_code", "status", "reason", "name", "errorcode", "__type"))
_EVENT = re.compile(r"^data:[ ]?(.*)$", re.MULTILINE)
_MARKS = re.compile(r"[`'\"*\\“”‘’]+")


@dataclass(frozen=True, slots=True)
class BodyContent:
    """The content of a body, in lower case. Its texts have no quotation marks and no runs of white space."""

    texts: tuple[str, ...]
    codes: frozenset[str]
    numbers: Mapping[str, int]
    document: Any
    event: str = ""


def read_body(body: bytes) -> BodyContent:
    """Reads a body of any form; a body that is not JSON is one text."""
    text = body.decode("utf-8", "replace").strip()
    document, event = _document(text)
    texts: list[str] = []
    left = MAX_TEXTS
    codes: set[str] = set()
    numbers: dict[str, int] = {}
    for key, value in _leaves(document, "", DEEPEST):
        match value:
            case bool():
                continue
            case int():
                numbers.setdefault(key, value)
                if key in _CODES:
                    codes.add(str(value))
            case str() if key in _CODES and " " not in value.strip():
                codes.add(value.strip().lower())
            case str() if left > 0:
                texts.append(plain(value))
                left -= len(texts[-1])
    return BodyContent(tuple(filter(None, texts)), frozenset(codes), numbers, document, event)


def is_error_body(body: bytes, *, answer: re.Pattern[bytes]) -> bool:
    """Whether a body, or an event, is an error although its status is one of success.

    `answer` is that of the endpoint (`Endpoint.answer`).
    """
    has_answer = answer.search(body) is not None
    if has_answer and not _ERROR.search(body):
        return False  # part of a normal reply, as nearly always
    content = read_body(body)
    document = content.document
    if content.event == "error":
        return True
    if not isinstance(document, Mapping):
        return False
    if document.get("error") or document.get("errors") or "error" in (document.get("type"), document.get("object")):
        return True
    envelope = document.get("base_resp")
    has_failed = isinstance(envelope, Mapping) and bool(envelope.get("status_code"))
    return not has_answer and (has_failed or any(key in document for key in ("detail", "message", "error_msg")))


def plain(text: str) -> str:
    """A text in the form that the patterns expect."""
    return " ".join(_MARKS.sub("", text[:MAX_TEXT]).split()).lower()


def _document(text: str) -> tuple[Any, str]:
    """The JSON value of a body, and the name of the event if it is one."""
    parsed = json_or_none(text)
    if parsed is not None:
        return _opened(parsed), ""
    events = _EVENT.findall(text) if text.startswith(("data:", "event:", ":", "id:", "retry:")) else []
    if not events:
        return text, ""
    values = [_opened(found) for each in events if (found := json_or_none(each)) is not None]
    failed = (value for value in values if isinstance(value, Mapping) and value.get("error"))
    value = next(failed, values[0] if values else None)
    name = "error" if re.search(r"^event:[ ]?error\s*$", text, re.MULTILINE) else ""
    return ("\n".join(events) if value is None else value), name


def _opened(value: Any) -> Any:
    """An event; if it holds a failed response, only its error, because the rest repeats the request's instructions."""
    response = value.get("response") if isinstance(value, Mapping) and value.get("type") == "response.failed" else None
    return {"error": response.get("error")} if isinstance(response, Mapping) else value


def _leaves(value: Any, key: str, depth: int) -> Iterator[tuple[str, Any]]:
    """All strings and numbers, each with its key; JSON inside strings is read too."""
    if depth == 0:
        return
    match value:
        case Mapping():
            for name, inner in value.items():
                if str(name).lower() not in _QUOTED or isinstance(inner, int):
                    yield from _leaves(inner, str(name).lower(), depth - 1)
        case list():
            for inner in value:
                yield from _leaves(inner, key, depth - 1)
        case str():
            nested = json_or_none(value) if value.lstrip()[:1] in ("{", "[") else None
            yield from [(key, value)] if nested is None else _leaves(nested, key, depth - 1)
        case int():
            yield key, value


# -- what its words mean ---------------------------------------------------------------------------------
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
    r"|\w*_not_found(?:_error)?|\w+_(?:parsing|type)|literal_error|enum|missing|extra_forbidden"
)
_VALUE_WORDS = re.compile(
    r"\bdoes(?: not|nt) exist\b|\bnot found\b|\binvalid value\b|\bsupported values are\b|\binput should be \w"
    r"|\btype: \w+, loc: |\binput(?:_value)?[:=] ?(?!\d)"
)

_RATE = re.compile(
    r"\bper[ -_]?(?:min|minute|hour|day|second|month)\b|\b[ot]?[rt]p[md]\b|rate[ _-]?limit"
    r"|quota|throttl|too many requests"
    r"|\bcredits?\b|afford|\bbalance\b|\bbilling\b|\bpayment\b|please wait|overloaded|max budget|spend"
    r"|\btokens? (?:has |have )?(?:expired|invalid)|\bapi[ _-]key\b|\b(?:auth\w*|access|bearer|refresh) tokens?\b"
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
    r"inputs? tokens? ?\+ ?max_\w+ must be",
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
    r"|cache_control|embeddings? dimension\w*|tool name|function name)\b"
)
_PROMPT = re.compile(r"\btokens?\b|context[ _-]?(?:length|window|size|limit)|n_ctx|上下文")

_ANY_OUTPUT, _ANY_TOGETHER, _ANY_INPUT = (re.compile("|".join(each)) for each in (_OUTPUT, _TOGETHER, _INPUT))


def refused_part(codes: frozenset[str], texts: Iterable[str]) -> RefusedPart | None:
    """The part that does not fit according to an error; None if the error is about something else."""
    if codes & _INPUT_CODES:
        return RefusedPart.INPUT
    if codes & _OTHER_CODES or any(_RATE.search(text) for text in texts):
        return None
    found = {_meaning(text) for text in texts}
    by_code = any(_VALUE_CODES.fullmatch(code) for code in codes)
    if by_code or any(_VALUE_WORDS.search(text) for text in texts):
        return RefusedPart.OUTPUT if RefusedPart.OUTPUT in found else None
    return RefusedPart.INPUT if RefusedPart.INPUT in found else next(filter(None, found), None)


def _meaning(text: str) -> RefusedPart | None:
    if _OTHER_SIZES.search(text) and not _PROMPT.search(text):
        return None
    if _ANY_OUTPUT.search(text) and not _ANY_TOGETHER.search(text):
        return RefusedPart.OUTPUT
    return RefusedPart.INPUT if _ANY_INPUT.search(text) else None


# -- the numbers -----------------------------------------------------------------------------------------

MIN_WINDOW, MAX_WINDOW = 512, 10_000_000  # tokens that a window may have
_YEARS_AND_CODES = {2013, *range(2020, 2036)}

_N = r"(?<![\d.,])(\d{1,3}(?:,\d{3})+(?!\d)|\d+(?!\d|k\b))(?:\.0+)?"
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
        rf"|prompt_tokens)\w{{0,20}}\)? ?[(=:]* ?{_N}"
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
        rf"| was)*:? ?\(?(?<!max_tokens )(?<!new_tokens ){_N}(?: tokens)?\)?"
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
    rf"max_(?:new_|completion_|output_)?tokens(?!\W*-\d)[^.;\d]{{0,40}}{_N}",
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
