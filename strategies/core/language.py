"""The language of a conversation, as far as a record's headings depend on it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from strategies.core.transcript import Message, Role, Transcript

_MESSAGES = 60
_LOOKED_AT = 400
_LEAST = 2
_LEAST_SHARE = 0.1
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_CHINESE = re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_LETTER = re.compile(r"[^\W\d_]")


def is_chinese(transcript: Transcript) -> bool:
    """Whether the user writes Chinese, or the assistant where no user speaks: at least half of the first messages."""
    for role in (Role.USER, Role.ASSISTANT):
        told = list(islice(filter(_LETTER.search, _beginnings(transcript.chain, role)), _MESSAGES))
        if told:
            return 2 * sum(map(_reads_chinese, told)) >= len(told)
    return False


def _beginnings(messages: Iterable[Message], role: Role) -> Iterable[str]:
    """The first characters of what was said in each message, without blocks of code."""
    return (_CODE.sub("", message.text[: 4 * _LOOKED_AT])[:_LOOKED_AT] for message in messages if message.role is role)


def _reads_chinese(text: str) -> bool:
    """A person who writes Chinese still quotes English names and errors: a tenth of the letters is enough."""
    found = len(_CHINESE.findall(text))
    return found >= max(_LEAST, _LEAST_SHARE * len(_LETTER.findall(text))) and len(_KANA.findall(text)) * 4 < found
