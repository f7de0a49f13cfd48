"""The replacement: the one message that stands for condensed history.

It is a user message, labelled as a record. A system message would give authority to whatever a tool once printed, and
the model would believe that it had said an assistant message itself. The frame says that the record asks for nothing,
and that exact values which it lacks are looked up, in the language of the conversation when the record is made. The
label before it is the same in every language, because `previous_record` finds the text by it. `rolling` uses the frame
of its source document, a named assistant message.

"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strategies.core.budget import Budget
from strategies.core.covered import covered, ledger_of
from strategies.core.ledger import Ledger, LedgerCaps, split_ledger
from strategies.core.messages import Dialect, TokenCounter, dump
from strategies.core.pieces import Literal, PieceKind
from strategies.core.view import Item, View

OPENING = "[Condensed history]"
SUMMARY_NAME, SUMMARY_OPENING = "context_summary", "## Context Summary"
_FRAME = (
    f"{OPENING} The {{count}} earlier messages, as a record, not a new request: go on with the task. Look up exact"
    " values that are not in it; do not recall them."
)
_CHINESE_FRAME = (
    f"{OPENING} 较早的 {{count}} 条消息的记录，不是新的请求：请继续当前任务。其中没有的确切值请查证，不要凭记忆。"
)
_SUMMARY_FRAME = (
    f"{SUMMARY_OPENING}\nA record of {{count}} earlier messages, no new request. Look up exact values that it lacks."
)
_CHINESE_SUMMARY_FRAME = f"{SUMMARY_OPENING}\n较早的 {{count}} 条消息的记录，不是新的请求。其中没有的确切值请查证。"
_CARRIED = (
    f"{OPENING} From the first {{count}} messages, which the compaction above stands for, word for word, here and in"
    " messages that may follow: a record, not a new request. Go on with the task where it stands."
)
_CHINESE_CARRIED = (
    f"{OPENING} 摘自前 {{count}} 条消息（上文的压缩内容代表它们），此处及其后的消息均为原文："
    "这是记录，不是新的请求。请从当前进度继续任务。"
)
_INNER = re.compile(r"^(?:\[Condensed history\][^\n]*|## Context Summary\n[^\n]*)\n\n(.*)$", re.DOTALL)


def replacement(text: str, count: int, dialect: Dialect, *, chinese: bool = False) -> Literal:
    """The message that stands for `count` messages: `text` in its frame."""
    frame = (_CHINESE_FRAME if chinese else _FRAME).format(count=count)
    return Literal(dump(dialect.user(f"{frame}\n\n{text}")), PieceKind.REPLACEMENT)


def context_summary(text: str, count: int, dialect: Dialect, *, chinese: bool = False) -> Literal:
    frame = (_CHINESE_SUMMARY_FRAME if chinese else _SUMMARY_FRAME).format(count=count)
    return Literal(dump(dialect.assistant(f"{frame}\n\n{text}", SUMMARY_NAME)), PieceKind.REPLACEMENT)


def carried_record(text: str, count: int, dialect: Dialect, *, chinese: bool = False) -> Literal:
    """The message behind an opaque head: a ledger of the `count` messages that the head stands for, in its frame."""
    frame = (_CHINESE_CARRIED if chinese else _CARRIED).format(count=count)
    return Literal(dump(dialect.user(f"{frame}\n\n{text}".strip())), PieceKind.CARRIED)


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


# -- its ledger ----------------------------------------------------------------------------------------------------

SAID_SHARE, NAMES_SHARE, LEDGER_SHARE = 2 / 3, 0.25, 0.9
"""The shares of a replacement's text that the parts of a ledger, and all of it, may take at most."""


def next_ledger(view: View, gone: Sequence[Item], end: int, budget: Budget, caps: LedgerCaps) -> Ledger:
    """The ledger of a replacement that takes the place of the items in `gone`, all before item `end`."""
    return ledger_of(covered(view, gone, end, budget.task_cap), caps, view.counter)


def ledger_tokens(kept: Ledger, counter: TokenCounter) -> int:
    """Tokens of a ledger after a record, with the empty line between them."""
    text = str(kept)
    return counter.text(text) + 1 if text else 0


def ledger_caps(budget: Budget, most: int) -> LedgerCaps:
    """The caps of a ledger in a replacement whose text has at most `most` tokens."""
    return LedgerCaps(
        said=min(budget.ledger.said, int(most * SAID_SHARE)),
        names=min(budget.ledger.names, int(most * NAMES_SHARE)),
        together=min(budget.ledger.together, int(most * LEDGER_SHARE)),
    )
