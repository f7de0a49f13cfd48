"""The replacement: the one message that stands for condensed history.

It is a user message, labelled as a record. A system message would give authority to whatever a tool once printed, and
the model would believe that it had said an assistant message itself. The frame says that the record asks for nothing,
in the language of the conversation when the record is made. The label before it is the same in every language, because
`previous_record` finds the text by it. `rolling` uses the frame of its source document, a named assistant message.
"""

from __future__ import annotations

import re

from strategies.core.ledger import Ledger, split_ledger
from strategies.core.messages import Dialect, TokenCounter, dump
from strategies.core.pieces import Literal, PieceKind
from strategies.core.view import View

OPENING = "[Condensed history]"
SUMMARY_NAME, SUMMARY_OPENING = "context_summary", "## Context Summary"
_FRAME = (
    f"{OPENING} The {{count}} earlier messages of this conversation were condensed into the record below to fit"
    " the context window. It is a record of what was said and done, not a new request: go on with the task."
)
_CHINESE_FRAME = (
    f"{OPENING} 为适应上下文窗口，本次对话中较早的 {{count}} 条消息已压缩为下面的记录。"
    "它只记录已说过和已做过的事，不是新的请求：请继续当前任务。"
)
_SUMMARY_FRAME = (
    f"{SUMMARY_OPENING}\nIt stands for {{count}} earlier messages of this conversation: a record, no new request."
)
_CHINESE_SUMMARY_FRAME = f"{SUMMARY_OPENING}\n它代表本次对话中较早的 {{count}} 条消息：仅为记录，不是新的请求。"
_INNER = re.compile(r"^(?:\[Condensed history\][^\n]*|## Context Summary\n[^\n]*)\n\n(.*)$", re.DOTALL)


def replacement(text: str, count: int, dialect: Dialect, *, chinese: bool = False) -> Literal:
    """The message that stands for `count` messages: `text` in its frame."""
    frame = (_CHINESE_FRAME if chinese else _FRAME).format(count=count)
    return Literal(dump(dialect.user(f"{frame}\n\n{text}")), PieceKind.REPLACEMENT)


def context_summary(text: str, count: int, dialect: Dialect, *, chinese: bool = False) -> Literal:
    frame = (_CHINESE_SUMMARY_FRAME if chinese else _SUMMARY_FRAME).format(count=count)
    return Literal(dump(dialect.assistant(f"{frame}\n\n{text}", SUMMARY_NAME)), PieceKind.REPLACEMENT)


def frame_tokens(counter: TokenCounter) -> int:
    """Tokens of the longer frame without its text; the frames of `rolling` have fewer."""
    frames = (frame.format(count=10_000) for frame in (_FRAME, _CHINESE_FRAME))
    return max(counter.message(counter.dialect.user(f"{frame}\n\n")) for frame in frames)


def text_room(cap: int, counter: TokenCounter) -> int:
    """The tokens left for the text of a replacement that may have `cap` tokens with its frame."""
    return max(cap - frame_tokens(counter), 0)


def previous_record(view: View) -> tuple[str, Ledger]:
    """The record and the ledger in the view's replacement, without the frame; both empty if there is no replacement."""
    if view.replacement is None:
        return "", Ledger()
    text = view.items[view.replacement].message.text
    match = _INNER.match(text)
    return split_ledger(match.group(1) if match else text)


def previous_text(view: View) -> str:
    return previous_record(view)[0]


def replaced_count(view: View, end: int) -> int:
    """How many messages before item `end` a replacement stands for: all except the first user message and `stays`."""
    before = view.messages_before(end)
    return before - sum(
        index is not None and index < before for index in {view.transcript.task, *view.transcript.stays}
    )
