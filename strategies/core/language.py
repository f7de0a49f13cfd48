"""Detects the language of a conversation: Chinese or not, which decides the headings of a record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from strategies.core.messages import Message, Role
from strategies.core.transcript import Transcript

_MESSAGES = 60
_LOOKED_AT = 400
_MIN_LETTERS = 2
_MIN_SHARE = 0.1
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_CHINESE = re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_LETTER = re.compile(r"[^\W\d_]")


def is_chinese(transcript: Transcript) -> bool:
    """Whether at least half of the user's first messages are Chinese; the assistant's, if the user says nothing."""
    for role in (Role.USER, Role.ASSISTANT):
        texts = list(islice(filter(_LETTER.search, _beginnings(transcript.chain, role)), _MESSAGES))
        if texts:
            return 2 * sum(map(_reads_chinese, texts)) >= len(texts)
    return False


def _beginnings(messages: Iterable[Message], role: Role) -> Iterable[str]:
    """The first characters of each message of a role, without blocks of code."""
    return (_CODE.sub("", message.text[: 4 * _LOOKED_AT])[:_LOOKED_AT] for message in messages if message.role is role)


def _reads_chinese(text: str) -> bool:
    """Whether a tenth of the letters is Chinese: people who write Chinese still quote English names and errors."""
    chinese = len(_CHINESE.findall(text))
    return (
        chinese >= max(_MIN_LETTERS, _MIN_SHARE * len(_LETTER.findall(text))) and len(_KANA.findall(text)) * 4 < chinese
    )
