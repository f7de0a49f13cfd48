"""Shared by strategies that replace everything before a cut with one record: its span, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strategies.core.budget import Budget
from strategies.core.pieces import Literal
from strategies.core.plan import Plan, Split, replace_before
from strategies.core.replacement import replaced_count, replacement
from strategies.core.summary import Cap, Record, Span
from strategies.core.transcript import is_chinese
from strategies.core.view import View
from strategies.memory.attribution import attribute_cards


def span_before(end: int, view: View, split: Split, cap: Cap) -> Span:
    """The span of all items before `end`, whose replacement may have the tokens of `cap`."""
    return Span.before(view, end, view.tokens - split.tokens_after(end) + cap.text)


def plan_record(
    record: Record,
    span: Span,
    budget: Budget,
    metadata: Mapping[str, Any],
    frame: Callable[..., Literal] = replacement,
) -> Plan:
    """The plan that replaces everything before the end of a record's span with the record in its frame."""
    view = span.view
    count, dialect = replaced_count(view, span.end), view.counter.dialect
    piece = frame(record.text, count, dialect, chinese=is_chinese(view.transcript))
    edit = replace_before(view, span.end, piece, budget.task_cap)
    return Plan((edit,), metadata, cards=attribute_cards(record.cards, view, span.items))
