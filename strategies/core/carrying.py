"""What one replacement hands to the next: the ledger of a view that is about to be condensed.

The rules come from what the user said and what no earlier ledger has seen, whether it still stands in the view or not;
the facts from the messages that go now. The last user message is not history yet, unless it is the first one too: that
one stands in every view, but its middle may be cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strategies.core.budget import Budget
from strategies.core.history import originals
from strategies.core.ledger import Ledger, LedgerCaps, ledger
from strategies.core.replacement import previous, room
from strategies.core.transcript import Counter, Message
from strategies.core.view import Item, View

RULES_SHARE, FACTS_SHARE = 2 / 3, 1 / 8
"""Of a replacement's text: what the ledger may have of a small window's."""


def next_ledger(view: View, gone: Sequence[Item], end: int, budget: Budget) -> Ledger:
    """The ledger of a replacement for the items before `end`, of which `gone` are new to it."""
    earlier = previous(view)[1]
    stays = {view.transcript.task, view.transcript.last_user}
    messages = [message for index, message in originals(view, gone) if index not in stays]
    return ledger(earlier, _said(view, end, earlier), messages, _caps(budget, view.counter), view.counter)


def ledger_tokens(kept: Ledger, counter: Counter) -> int:
    """Tokens of a ledger in a text, with the empty line before it."""
    text = str(kept)
    return counter.text(text) + 1 if text else 0


def _caps(budget: Budget, counter: Counter) -> LedgerCaps:
    most = room(budget.replacement_cap, counter)
    return LedgerCaps(
        min(budget.ledger.rules, int(most * RULES_SHARE)), min(budget.ledger.facts, int(most * FACTS_SHARE))
    )


def _said(view: View, end: int, earlier: Ledger) -> Iterator[Message]:
    """The messages before item `end` that the earlier ledger has not seen, as far as they are known."""
    transcript = view.transcript
    start = 0 if earlier == Ledger() or view.replacement is None else _source(view, view.replacement + 1)
    for index in range(start, _source(view, end)):
        is_open = index == transcript.last_user and index != transcript.task
        if transcript.chain[index].known and not is_open:
            yield transcript.chain[index]


def _source(view: View, place: int) -> int:
    """The chain index of the first message at item `place` or behind it."""
    sources = (view.items[i].source for i in range(place, view.size))
    return next((source for source in sources if source is not None), len(view.transcript.chain))
