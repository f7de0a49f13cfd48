"""The numbers in an overflow error: the window, the tokens of the prompt, the tokens asked for as a reply.

The first pattern that matches gives the number; the surest patterns come first. A number that cannot be a window, such
as a status, a year or a request id, is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from proxy.overflow.reading import BodyContent

LEAST, MOST = 512, 10_000_000  # tokens that a window may have
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
    rf"{_N} \+ {_N} >=? {_N}",  # the last group counts
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
    rf"(?:must be|should be) (?:<=?|less than|at most) {_N}",
    (
        rf"\d (?:tokens )?(?:exceeds?|is (?:longer|larger|greater) than|exceeded|but|while|when"
        rf"|larger than)[^.;\d]{{0,70}}{_N}"
    ),
    rf"(?:fewer|less) than {_N} tokens",
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
    rf"{_N} \+ {_N} >=? \d+",  # the first group counts
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


class Numbers(NamedTuple):
    """Tokens; None if the error does not say."""

    window: int | None
    prompt_tokens: int | None
    reply_tokens: int | None


def numbers_in(content: BodyContent) -> Numbers:
    """The numbers in an error that is known to be one of overflow."""
    window = next(_plausible([*_values_of(content.numbers, _WINDOW_KEYS), *_windows(content.texts)]), None)
    counts = _positive([*_values_of(content.numbers, _COUNTED_KEYS), *_counts(content.texts)])
    counted = next((each for each in counts if each != window), None)
    return Numbers(window, counted, next(_positive(_matches(content.texts, _ASKED_PATTERNS)), None))


def _values_of(numbers: Mapping[str, int], keys: Iterable[str]) -> Iterator[int]:
    return (numbers[key] for key in keys if key in numbers)


def _windows(texts: Iterable[str]) -> Iterator[int]:
    for text in texts:
        for pattern in _WINDOW_PATTERNS:
            yield from (_number(found.groups()[-1]) for found in pattern.finditer(text))


def _counts(texts: Iterable[str]) -> Iterator[int]:
    """Lengths of the prompt; parts of it that are counted separately are added."""
    for text in texts:
        for n, pattern in enumerate(_COUNT_PATTERNS):
            for found in pattern.finditer(text):
                parts = found.groups() if n == 0 else found.groups()[:1]
                yield sum(_number(part) for part in parts if part)


def _matches(texts: Iterable[str], patterns: Iterable[re.Pattern[str]]) -> Iterator[int]:
    for text in texts:
        for pattern in patterns:
            yield from (_number(found.group(1)) for found in pattern.finditer(text))


def _plausible(numbers: Iterable[int]) -> Iterator[int]:
    return (number for number in numbers if LEAST <= number <= MOST and number not in _YEARS_AND_CODES)


def _positive(numbers: Iterable[int]) -> Iterator[int]:
    return (number for number in numbers if 0 < number <= MOST * 10)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
