"""Failures: which results of tools say that their call failed, and the lines that say why.

A call has failed by its own form: the protocol's mark, an exit status, a traceback, a compiler's `path:line: error`, an
error as the whole answer. The word alone is no failure: a file that is read may be about nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from strategies.core.messages import Message
from strategies.core.parsing import has_many_values, loads

LONGEST = 300  # characters of a line
_MOST = 3  # lines of one result
_READ = 16_000  # characters of a result that are read: half at its beginning, half at its end
_EXIT = (
    r"(?:exit(?:ed)?[ _]?(?:with )?(?:code|status)|return ?code|exit_status)[\"']?\s*[:=]?\s*(?:\[?\s*)?(-?\d{1,5})\b"
)
_STATUS = re.compile(_EXIT, re.IGNORECASE)
_ONLY_STATUS = re.compile(rf"\W*(?:error\W+)?{_EXIT}\W*", re.IGNORECASE)
_WHOLE = re.compile(
    r"\s*(?:<error>|\[?error\b\]?[: ]|fatal: |(?:\w{1,60}\.){0,8}\w{0,60}(?:Error|Exception): )", re.IGNORECASE
)
_TRACEBACK = re.compile(
    r"^([ \t]{0,8})Traceback \(most recent call last\):|^goroutine \d+ \[|^Exception in thread ", re.MULTILINE
)
_RAISED = re.compile(r"(?:\w{1,60}\.){0,8}\w{1,60}(?:: |$)")
_LOCATED = re.compile(
    r"\s{0,40}(?:[^\s:()]{1,200}(?::\d+){1,2}|[^\s:()]{1,200}\(\d+(?:,\d+)?\)|error\[\w{1,12}\]|npm ERR!|npm error|E  )"
    r":?\s{1,4}(?:(?:fatal )?error\b|\S.{0,20}Error\b|code\b|[A-Z]\w{1,60}Error)"
    r"|error(?:\[\w{1,12}\])?: |FAILED \S|fatal: "
)
_ERROR_KEYS = ("error", "errors", "exception")


def failures(message: Message, text: str, *, is_file: bool) -> list[str]:
    """The lines in which a tool's result says that its call failed, and why; none if it does not say that it failed.

    `text` is what it printed; a result that is a file's content (`is_file`) has failed only by the protocol's mark.
    """
    has_failed = message.dialect.has_failed(message.body)
    if is_file and not has_failed:
        return []
    read = text if len(text) <= _READ else f"{text[: _READ // 2]}\n{text[-_READ // 2 :]}"
    lines = [line.strip() for line in read.splitlines() if line.strip()]
    found = [line for line in dict.fromkeys(_told(read, lines)) if not _ONLY_STATUS.fullmatch(line)]
    if not found and lines and (has_failed or _status(read)):
        found = [_reason(lines)]
    return [line for line in found if len(line) <= LONGEST][-_MOST:]


def _reason(lines: list[str]) -> str:
    """The line that says why a call failed: behind a status that stands first, else the last one."""
    others = [line for line in lines if not _ONLY_STATUS.fullmatch(line)] or lines
    return others[0 if lines[0] not in others else -1]


def _told(text: str, lines: list[str]) -> Iterator[str]:
    if lines and _WHOLE.match(lines[0]):
        yield lines[0]
    if (stated := _stated(text)) is not None:
        yield stated
    yield from (line for line in lines if _LOCATED.match(line))
    if trace := _TRACEBACK.search(text):
        later = (line.removeprefix(trace[1] or "") for line in text[trace.end() :].splitlines()[1:201])
        yield from (line.strip() for line in later if line[:1].strip() and _RAISED.match(line))


def _stated(text: str) -> str | None:
    """The error that a result of JSON states in a member of its own."""
    if not text.lstrip().startswith("{") or has_many_values(text):
        return None
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return None
    stated = next((value[key] for key in _ERROR_KEYS if isinstance(value, dict) and value.get(key)), None)
    if isinstance(stated, dict):
        stated = stated.get("message")
    return " ".join(stated.split()) if isinstance(stated, str) else None


def _status(text: str) -> bool:
    """Whether the exit status that a result states first or last is not 0."""
    stated = [int(each) for each in _STATUS.findall(text)]
    return bool(stated) and stated[-1] != 0
