"""Excerpts: cuts a message in the middle and keeps its beginning and its end, or leaves a line of it.

Errors, exit codes and totals are at the end of a tool's output, headings at its beginning. A note at the cut says how
much was left out.
"""

from __future__ import annotations

import re

from strategies.core.messages import Message, TokenCounter, dump
from strategies.core.paths import Target

ERROR = re.compile(r"error|failed|exception|traceback|错误|失败|异常", re.IGNORECASE)
"""Matches lines of a result that mention an error."""
EXCERPT = 160  # characters of an excerpt
_NO_ERROR = re.compile(r"\b(?:0|no|without)\s+(?:\w+\s+)?(?:error|fail|exception)", re.IGNORECASE)
HEAD_SHARE = 0.6
_TRIES = 6
_SPARSE = 16
_NOTE_TOKENS = 10


def shorten_message(message: Message, cap: int, counter: TokenCounter) -> str:
    """The JSON text of `message` with its content cut to at most `cap` tokens; its own text if it fits."""
    if message.tokens <= cap:
        return message.raw
    dialect, body = message.dialect, message.body
    texts = dialect.texts(body)
    frame = counter.message(dialect.with_texts(body, [""] * len(texts)))
    room = max(cap - frame, 0)
    if dialect.is_plain(body):
        # The message's own count gives the tokens of its text.
        cut = [_cut_to_tokens(texts[0], room, message.tokens - frame, counter)]
    else:
        characters = max(sum(map(len, texts)), 1)
        cut = [cut_text(text, room * len(text) // characters, counter) for text in texts]
    return dump(dialect.with_texts(body, cut))


def cut_text(text: str, cap: int, counter: TokenCounter) -> str:
    """`text` without its middle, in at most `cap` tokens; in the worst case only the note about the cut."""
    counted = text if len(text) <= cap * _SPARSE else text[: cap * _SPARSE]
    tokens = counter.text(counted)
    if tokens <= cap and counted is not text:
        counted, tokens = text, counter.text(text)
    if tokens <= cap:
        return text
    return _cut_to_tokens(text, cap, tokens * len(text) // max(len(counted), 1), counter)


def _cut_to_tokens(text: str, cap: int, tokens: int, counter: TokenCounter) -> str:
    """Cuts `text`, which has about `tokens` tokens and too many, to at most `cap`.

    Tokens per character differ between the ends and the middle, so the length is found in a few tries. Each try counts
    only the parts that would be kept, never the whole text.
    """
    length = min(len(text) * max(cap - _NOTE_TOKENS, 1) // max(tokens, 1), len(text))
    for _ in range(_TRIES):
        cut = _with_ends(text, length)
        counted = counter.text(cut)
        if counted <= cap:
            return cut
        length = int(length * cap / counted * 0.95)
    return _note(len(text))


def without_middle(text: str, most: int) -> str:
    """`text` without its middle, in at most `most` characters; in the worst case only the note about the cut."""
    return _with_ends(text, max(most - len(_note(len(text))) - 2, 0))[:most]


def _with_ends(text: str, length: int) -> str:
    """The beginning and the end of `text`, together `length` characters, with a note between them."""
    head = int(length * HEAD_SHARE)
    return f"{text[:head]}\n{_note(len(text) - length)}\n{text[len(text) - length + head :]}"


def _note(characters: int) -> str:
    return f"[… {characters:,} characters left out …]"


def excerpt_of(text: str) -> str:
    """The excerpt of a command's output: the last line that mentions an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = (line for line in reversed(lines) if ERROR.search(line[:EXCERPT]) and not _NO_ERROR.search(line[:EXCERPT]))
    line = next(errors, lines[-1] if lines else "")
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1] + "…"


def masked_result(
    text: str, tokens: int, tool: str, file: Target | None, handle: str, least: int, *, is_repeated: bool, chinese: bool
) -> str:
    """What takes the place of a result: a line, and an excerpt of a command's output of more than `least` tokens."""
    again = again_of(file, handle, chinese=chinese)
    if chinese:
        name, where = f" {tool} " if tool else "工具", f"（{file.path}）" if file else ""
        later = "；之后又运行过" if is_repeated and not file else ""
        line = f"[已省略{name}的结果{where}：{len(text):,} 个字符，{tokens:,} 个 token{later}{again}]"
    else:
        where, later = f" on {file.path}" if file else "", "; run again later" if is_repeated and not file else ""
        line = (
            f"[result of {tool or 'a tool'}{where} left out: {len(text):,} characters, {tokens:,} tokens{later}{again}]"
        )
    excerpt = "" if file or is_repeated or tokens <= least else excerpt_of(text)
    return f"{line}\n{excerpt}" if excerpt else line


def again_of(file: Target | None, handle: str, *, chinese: bool) -> str:
    """How to get again what was left out; a file is not said to be what it was."""
    if chinese:
        return (f"；{file.path} 此后可能已更改" if file else "") + (f"；句柄 {handle}" if handle else "")
    return (f"; {file.path} may have changed since" if file else "") + (f"; handle {handle}" if handle else "")
