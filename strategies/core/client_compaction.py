"""A client's own compaction: the request that asks for it, and how its answer is known when it comes back.

A client that compacts its history by itself asks a model for a summary, or the server for an opaque item. What it sends
afterwards begins with the answer, in a form of its own: with a text before it, without the part that was only for
thinking, behind user messages that it has kept. So the answer is known by *marks*: digests of the longest lines of a
summary, or the digest of what is opaque. A list carries the marks if half of them stand in its beginning: in its first
message, or in one of the user and system messages before the first reply.

Marks are digests, so that what is stored of an answer says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from heapq import nlargest
from itertools import islice

from strategies.core.messages import Dialect, Message, Role, Value
from strategies.core.parsing import objects_in, word
from strategies.core.transcript import Transcript
from strategies.keywords import keywords

MAX_MARKS = 8
MIN_LINE = 24  # characters of a line that can be a mark: a shorter one may stand anywhere
_MAX_LINES = 12  # the longest lines of a text that are looked at: clients add some of their own to the summary
_MAX_MESSAGES, _MAX_TEXTS = 8, 8  # messages that are looked at, the last ones of the beginning, and texts of each
_MAX_BYTES = 512 * 1024  # of a message that is looked at: to parse a longer one would hold up all other requests
_MAX_OPENING = 2_000  # characters before a prompt
_PROMPTS, _OPENINGS = keywords("compaction_prompts"), keywords("compaction_openings")
PROMPT_WORDS = [prompt.encode() for prompt in _PROMPTS]
"""One of these is in the bytes of each message that is a prompt."""
_SUMMARY = re.compile(r"<summary>(.*)</summary>", re.DOTALL)
_THINKING = re.compile(r"<analysis>.*?</analysis>", re.DOTALL)
_SEALED = ("encrypted_content", "signature", "content")
"""The members of a vendor's compaction that identify it; the first that is there counts."""


def is_prompt(message: Message) -> bool:
    """Whether a message asks a model, in the words of a client that is known, to summarize the conversation.

    Clients join it with what else is the user's, such as the results before it, as a text of its own.
    """
    return message.role is not Role.ASSISTANT and any(map(_begins_as_prompt, _texts(message.body.get("content"))))


def _begins_as_prompt(text: str) -> bool:
    text = text.lstrip()
    if text.startswith(_OPENINGS):
        return any(prompt in text[:_MAX_OPENING] for prompt in _PROMPTS)
    return text.startswith(_PROMPTS)


def marks_of(answer: Iterable[Value], dialect: Dialect) -> tuple[str, ...]:
    """The marks of the messages that answer a compaction; none if they say too little to be known again."""
    values = list(answer)
    if sealed := [digest(text) for value in values for text in _sealed(value)]:
        return tuple(sealed[:MAX_MARKS])
    text = "\n".join(dialect.text(value) for value in values)
    summary = _SUMMARY.search(text)
    return tuple(map(digest, _lines(summary[1] if summary else _THINKING.sub("", text), MAX_MARKS)))


def candidates(transcript: Transcript) -> list[str]:
    """The digests of all that may be a mark in the beginning of a list."""
    found: dict[str, None] = {}
    for message in _beginning(transcript):
        texts = islice(_texts(message.body.get("content")), _MAX_TEXTS)
        lines = (line for text in texts for line in _lines(text, _MAX_LINES))
        found |= dict.fromkeys(map(digest, (*_sealed(message.body), *lines)))
    return list(found)


def carries(transcript: Transcript, marks: Sequence[str]) -> bool:
    """Whether a list begins with the answer that has these marks."""
    return bool(marks) and 2 * len(set(marks).intersection(candidates(transcript))) >= len(marks)


def digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"compaction").hexdigest()


def _beginning(transcript: Transcript) -> list[Message]:
    """The messages that may hold the answer: vendors' blocks may also be in a first message of the assistant."""
    chain = transcript.chain
    end = next((i for i, message in enumerate(chain) if message.role is not Role.USER), len(chain))
    systems = [message for place, message in transcript.systems if place <= max(end, 1)]
    newest = [*systems, *chain[: max(end, 1)]][-_MAX_MESSAGES:]
    return [message for message in newest if len(message.data) <= _MAX_BYTES]


def _lines(text: str, most: int) -> list[str]:
    """The longest lines of a text, without what clients change about white space."""
    longest = nlargest(most, set(text.splitlines()), key=lambda line: (len(line), line))
    lines = (" ".join(line.split()) for line in longest)
    return [line for line in dict.fromkeys(lines) if len(line) >= MIN_LINE]


def _sealed(value: Value) -> Iterator[str]:
    """The texts that identify the vendor's compactions in a message."""
    for part in (value, *objects_in(value.get("content"))):
        if word(part.get("type")) == "compaction":
            yield next((text for member in _SEALED if (text := word(part.get(member)))), "")


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    yield from (word(part.get("text")) for part in objects_in(content))
