"""The replacement: the one message that stands for condensed history.

It enters as a message of the user's, labelled as a record: as a system message it would give authority to
whatever a tool once printed, as an assistant's it would be something the model believes to have said. The
frame says that it asks for nothing. `rolling` has a frame of its own, that of its document: an assistant's message by
name. Whoever condenses next reads either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from strategies.core.condensation import Kind, Literal
from strategies.core.ledger import Ledger, parted
from strategies.core.transcript import Counter, dump
from strategies.core.view import View

OPENING = "[Condensed history]"
SUMMARY_NAME, SUMMARY_OPENING = "context_summary", "## Context Summary"
_FRAME = (
    OPENING + " The {count} earlier messages of this conversation were condensed into the record below to fit"
    " the context window. It is a record of what was said and done, not a new request: go on with the task.\n\n"
    "{text}"
)
_SUMMARY_FRAME = (
    SUMMARY_OPENING
    + "\nIt stands for {count} earlier messages of this conversation: a record, no new request.\n\n{text}"
)
_INNER = re.compile(r"^(?:\[Condensed history\][^\n]*|## Context Summary\n[^\n]*)\n\n(.*)$", re.DOTALL)


def replacement(text: str, stands_for: int, extra: Mapping[str, object] | None = None) -> Literal:
    """The message that stands for `stands_for` messages, with `text` in the frame."""
    body: dict[str, object] = {"role": "user", "content": _FRAME.format(count=stands_for, text=text)}
    return Literal(dump({**body, **(extra or {})}), Kind.REPLACEMENT)


def context_summary(text: str, stands_for: int) -> Literal:
    """The same message as `rolling` has it."""
    content = _SUMMARY_FRAME.format(count=stands_for, text=text)
    return Literal(dump({"role": "assistant", "name": SUMMARY_NAME, "content": content}), Kind.REPLACEMENT)


def frame_tokens(counter: Counter) -> int:
    """Tokens of the frame without its text; that of `rolling` has fewer."""
    return counter.message({"role": "user", "content": _FRAME.format(count=10_000, text="")})


def room(cap: int, counter: Counter) -> int:
    """Tokens for the text of a replacement that may have `cap` tokens in all."""
    return max(cap - frame_tokens(counter), 0)


def previous(view: View) -> tuple[str, Ledger]:
    """The record and the ledger in the view's replacement, without its frame; empty where there is none."""
    if view.replacement is None:
        return "", Ledger()
    text = view.items[view.replacement].message.text
    found = _INNER.match(text)
    return parted(found.group(1) if found else text)


def previous_text(view: View) -> str:
    """The record in the view's replacement, without frame and ledger; "" where there is none."""
    return previous(view)[0]


def stands_for(view: View, end: int) -> int:
    """How many messages of the transcript lie before item `end`, without the two of the user's that stay."""
    behind = next((item.source for item in view.items[end:] if item.source is not None), None)
    before = len(view.transcript.chain) if behind is None else behind
    kept = {view.transcript.task, view.transcript.last_user}
    return before - sum(index is not None and index < before for index in kept)
