"""The record of `dynacontext`: how it is asked for, and how large it may be.

The record must be in exactly one `<summary>` tag. If an answer lacks it, or may not stand for history, the model is
asked again, up to three times in all. Memory cards are outside the tag, in a block of their own.

After a vote, the record may have at most half of the tokens that it stands for. So it is known before a vote whether
every acceptable record would shrink the view by enough. If not, no vote is held.
"""

from __future__ import annotations

import re

from strategies.core.answer import ParsedAnswer, read_plain_answer
from strategies.core.budget import Budget
from strategies.core.errors import NothingToSummarize
from strategies.core.messages import dump
from strategies.core.parsing import tag_contents
from strategies.core.pieces import Literal, PieceKind
from strategies.core.replacement import frame_tokens
from strategies.core.summary import MIN_RECORD, Cap, RecordForm, Span, record_cap
from strategies.core.view import View, item_for
from strategies.dynacontext.options import DynaContextOptions
from strategies.dynacontext.scope import Scope

TRIES = 3
_SECTIONS = ("history_detail", "history_summary", "future_direction")
_OPENED = re.compile(rf"<({'|'.join(_SECTIONS)})>")


def tagged(text: str) -> ParsedAnswer:
    """Reads the record from the only `<summary>` tag of an answer; an answer with none or several is malformed."""
    answer = read_plain_answer(text)
    summaries = list(tag_contents(answer.record, "summary"))
    if len(summaries) != 1:
        return answer._replace(well_formed=False, is_complete=False)
    return answer._replace(record=_with_headings(summaries[0]))


def _with_headings(text: str) -> str:
    """The text with a heading on its own line in place of each section's tags; a tag that is not closed stays."""
    parts: list[str] = []
    read_to = 0
    last = {name: text.rfind(f"</{name}>") for name in _SECTIONS}
    for opened in _OPENED.finditer(text):
        name = opened[1]
        if opened.start() < read_to or last[name] < opened.end():
            continue
        closed = text.find(f"</{name}>", opened.end())
        heading = f"{name.replace('_', ' ').capitalize()}:"
        parts += [text[read_to : opened.start()], heading, text[opened.end() : closed]]
        read_to = closed + len(f"</{name}>")
    return "\n".join(filter(None, map(str.strip, (*parts, text[read_to:]))))


FORMS = {
    "plain": RecordForm("dynacontext", read=tagged, tries=TRIES),
    "sections": RecordForm("dynacontext-sections", read=tagged, tries=TRIES),
}


def span_of(view: View, scope: Scope) -> Span:
    """The span that the record of a scope stands for. Its tokens are those of the scope less those of the frame.

    Raises `NothingToSummarize` if the record would add nothing.
    """
    if not scope.candidates:
        raise NothingToSummarize("nothing between the first messages and those that must stay")
    return Span.before(view, scope.recorded, scope.tokens - frame_tokens(view.counter))


def lead_in(view: View, options: DynaContextOptions) -> tuple[Literal, ...]:
    """The empty assistant message that the source document has before a record, if the options ask for it."""
    return (Literal(dump(view.counter.dialect.assistant("")), PieceKind.LEAD_IN),) if options.empty_assistant else ()


def cap_after_vote(span: Span, budget: Budget, options: DynaContextOptions) -> Cap:
    """The cap of a record after a vote: at most half of the span; raises `Declined` if the window has no room."""
    most, half = record_cap(span.view, budget, options.summary_max_tokens), max(span.tokens // 2, MIN_RECORD)
    return Cap(min(most.text, half), min(most.record, half))


def least_saved(span: Span, budget: Budget, options: DynaContextOptions) -> int:
    """The tokens that a condensation after a vote saves at the least, whichever acceptable record is written.

    Raises `Declined` if there is no room for a record.
    """
    cap, view = cap_after_vote(span, budget, options), span.view
    span.ledger_and_room(cap, budget)
    lead_ins = [item_for(piece, view.transcript, view.counter) for piece in lead_in(view, options)]
    return span.tokens - cap.text - sum(item.message.tokens for item in lead_ins)
