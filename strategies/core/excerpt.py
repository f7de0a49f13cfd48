"""Excerpts: a message cut in the middle, so that its beginning and its end stand.

Errors, exit codes and totals are at the end of a tool's output, headings at its beginning. The cut says how
much it left out.
"""

from __future__ import annotations

from strategies.core.transcript import Counter, Message, content_text, dump

HEAD_SHARE = 0.6
_TRIES = 6


def shortened(message: Message, cap: int, counter: Counter) -> str:
    """The JSON text of `message` with its content cut to about `cap` tokens, never more; raw if it fits."""
    if message.tokens <= cap:
        return message.raw
    text = content_text(message.body.get("content"))
    frame = counter.message({**message.body, "content": ""})
    cut = cut_text(text, max(cap - frame, 0), counter)
    return dump({**message.body, "content": cut})


def cut_text(text: str, cap: int, counter: Counter) -> str:
    """`text` with its middle left out, at most `cap` tokens; the note of the cut alone in the worst case.

    Tokens per character differ between the ends and the middle, so the length is found by a few tries,
    each on the pieces that would be kept: the whole text is never counted again.
    """
    if counter.text(text) <= cap:
        return text
    length = min(len(text), cap * 4)
    for _ in range(_TRIES):
        cut = _cut(text, length)
        tokens = counter.text(cut)
        if tokens <= cap:
            return cut
        length = int(length * cap / tokens * 0.95)
    return _note(len(text))


def _cut(text: str, length: int) -> str:
    head = int(length * HEAD_SHARE)
    tail = length - head
    left_out = len(text) - length
    return f"{text[:head]}\n{_note(left_out)}\n{text[len(text) - tail :]}"


def _note(characters: int) -> str:
    return f"[… {characters:,} characters left out …]"
