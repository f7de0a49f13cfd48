"""The line in the place of a tool's result: what was there, and how to get it again."""

from __future__ import annotations

import re

from strategies.core.excerpt import ERROR
from strategies.core.messages import ToolCall
from strategies.core.paths import Target

EXCERPT = 160  # characters of an excerpt
_NO_ERROR = re.compile(r"\b(?:0|no|without)\s+(?:\w+\s+)?(?:error|fail|exception)", re.IGNORECASE)


def excerpt_of(text: str) -> str:
    """The excerpt of a command's output: the last line that mentions an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = (line for line in reversed(lines) if ERROR.search(line[:EXCERPT]) and not _NO_ERROR.search(line[:EXCERPT]))
    line = next(errors, lines[-1] if lines else "")
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1] + "…"


def result_line(
    call: ToolCall | None,
    file: Target | None,
    characters: int,
    tokens: int,
    handle: str,
    *,
    is_repeated: bool,
    chinese: bool,
) -> str:
    """The line in the place of a result; without a `handle` no search would find it."""
    again, tool = again_of(file, handle, chinese=chinese), call.name if call else ""
    if chinese:
        name, where = f" {tool} " if tool else "工具", f"（{file.path}）" if file else ""
        later = "；之后又运行过" if is_repeated and not file else ""
        return f"[已省略{name}的结果{where}：{characters:,} 个字符，{tokens:,} 个 token{later}{again}]"
    where = f" on {file.path}" if file else ""
    later = "; run again later" if is_repeated and not file else ""
    return f"[result of {tool or 'a tool'}{where} left out: {characters:,} characters, {tokens:,} tokens{later}{again}]"


def again_of(file: Target | None, handle: str, *, chinese: bool) -> str:
    """How to get again what was left out; a file is not said to be what it was."""
    if chinese:
        return (f"；{file.path} 此后可能已更改" if file else "") + (f"；句柄 {handle}" if handle else "")
    return (f"; {file.path} may have changed since" if file else "") + (f"; handle {handle}" if handle else "")
