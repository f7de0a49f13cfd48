"""Carrying: makes the ledger that the next replacement of a view carries.

Its rules come from the earlier ledger and from all user messages since then, whether these stay in the view or not.
Its facts come from the messages that are condensed now. The last user message is not history yet, unless it is also
the first one, which is in every view but may be cut in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from strategies.core.budget import Budget
from strategies.core.history import originals
from strategies.core.language import is_chinese
from strategies.core.ledger import Ledger, LedgerCaps, ledger
from strategies.core.messages import Counter, Message
from strategies.core.replacement import previous_record, text_room
from strategies.core.view import Item, View

RULES_SHARE, FACTS_SHARE = 2 / 3, 1 / 8
"""The shares of a replacement's text that rules and facts may take, if a small window leaves less than their caps."""


def next_ledger(view: View, gone: Sequence[Item], end: int, budget: Budget) -> Ledger:
    """The ledger of a replacement for the items before `end`; `gone` are those that no earlier ledger has seen."""
    earlier = previous_record(view)[1]
    stays = {view.transcript.task, *view.transcript.question}
    messages = [message for index, message in originals(view, gone) if index not in stays]
    said, caps = _messages_since(view, end, earlier), _caps(budget, view.counter)
    return replace(ledger(earlier, said, messages, caps, view.counter), chinese=is_chinese(view.transcript))


def ledger_tokens(kept: Ledger, counter: Counter) -> int:
    """Tokens of a ledger behind a record, with the empty line between them."""
    text = str(kept)
    return counter.text(text) + 1 if text else 0


def _caps(budget: Budget, counter: Counter) -> LedgerCaps:
    most = text_room(budget.replacement_cap, counter)
    return LedgerCaps(
        min(budget.ledger.rules, int(most * RULES_SHARE)), min(budget.ledger.facts, int(most * FACTS_SHARE))
    )


def _messages_since(view: View, end: int, earlier: Ledger) -> Iterator[Message]:
    """The messages before item `end` that the earlier ledger has not seen and whose text is stored."""
    transcript = view.transcript
    start = 0 if earlier == Ledger() or view.replacement is None else _source(view, view.replacement + 1)
    for index in range(start, _source(view, end)):
        is_open = index in transcript.question and index != transcript.task
        if transcript.chain[index].has_text and not is_open:
            yield transcript.chain[index]


def _source(view: View, place: int) -> int:
    """The chain index of the first message at or behind item `place`."""
    sources = (view.items[i].source for i in range(place, view.size))
    return next((source for source in sources if source is not None), len(view.transcript.chain))
