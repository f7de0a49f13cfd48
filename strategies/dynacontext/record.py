"""The record of `dynacontext`: each question is asked up to three times, and the answer must be in a `<summary>` tag.

After a vote it may have half of the tokens that it stands for, so that a vote is held only where any record that is
accepted leads to a view that is smaller by enough.

An answer without the one tag, or one that may not stand for history, is asked for again. Memory cards stand outside of
the tag, in a block of their own.
"""

from __future__ import annotations

import re

from strategies.core.answer import Told, as_text
from strategies.core.budget import Budget
from strategies.core.condensation import Kind, Literal
from strategies.core.replacement import frame_tokens
from strategies.core.summary import LEAST_RECORD, Cap, Form, Span, record_cap
from strategies.core.tags import within
from strategies.core.transcript import dump
from strategies.core.view import View, item_for
from strategies.dynacontext.options import DynaContextOptions
from strategies.dynacontext.scope import Scope

TRIES = 3
LEAD_IN = Literal(dump({"role": "assistant", "content": ""}), Kind.LEAD_IN)

_SECTIONS = ("history_detail", "history_summary", "future_direction")
_OPENED = re.compile(rf"<({'|'.join(_SECTIONS)})>")


def tagged(text: str) -> Told:
    """What stands in the one `<summary>` of an answer, sections under headings; malformed without the one tag."""
    told = as_text(text)
    found = list(within(told.record, "summary"))
    if len(found) != 1:
        return told._replace(well_formed=False, is_whole=False)
    return told._replace(record=_headed(found[0]))


def _headed(text: str) -> str:
    """A text with its sections under headings, without their tags; one that is never closed stays as it is."""
    parts, behind = [], 0
    last = {name: text.rfind(f"</{name}>") for name in _SECTIONS}
    for opened in _OPENED.finditer(text):
        name = opened[1]
        if opened.start() < behind or last[name] < opened.end():
            continue
        closed = text.find(f"</{name}>", opened.end())
        heading = f"{name.replace('_', ' ').capitalize()}:\n"
        parts += [text[behind : opened.start()], heading, text[opened.end() : closed].strip()]
        behind = closed + len(f"</{name}>")
    return "".join((*parts, text[behind:]))


FORMS = {
    "plain": Form("dynacontext", read=tagged, tries=TRIES),
    "sections": Form("dynacontext-sections", read=tagged, tries=TRIES),
}


def span_of(view: View, scope: Scope) -> Span:
    """What a record is to stand for; the frame around it has its share of what goes."""
    return Span.before(view, scope.recorded, scope.tokens - frame_tokens(view.counter))


def cap_after_vote(span: Span, budget: Budget, options: DynaContextOptions) -> Cap:
    """The most tokens of a record after a vote: of a span, half; raises `Declined` where the window has no room."""
    most, half = record_cap(span.view, budget, options.summary_max_tokens), max(span.tokens // 2, LEAST_RECORD)
    return Cap(min(most.text, half), min(most.record, half))


def least_saved(span: Span, budget: Budget, options: DynaContextOptions) -> int:
    """Tokens that go after a vote whatever record is accepted; raises `Declined` where none can be."""
    cap, view = cap_after_vote(span, budget, options), span.view
    span.carried(cap, budget)
    lead_in = item_for(LEAD_IN, view.transcript, view.counter).message.tokens if options.empty_assistant else 0
    return span.tokens - cap.text - lead_in
