"""The recital: rules of the record, repeated behind a user message that stands far below them.

Models follow what they read last. A recital is put in where so many tokens have passed since the rules were last told,
by the record or by an earlier recital, that it adds at most 1 / `FAR` to them: a known share of every prompt, in any
window.
"""

from __future__ import annotations

from strategies.core.cues import is_weak
from strategies.core.ledger import fitting_rules
from strategies.core.messages import dump
from strategies.core.pieces import is_recital
from strategies.core.replacement import previous_record
from strategies.core.transcript import is_chinese
from strategies.core.view import View

FAR = 32
HEADING = "[Ledger] The user's own words from the record above, which still hold:"
CHINESE_HEADING = "[Ledger] 用户的原话，出自以上记录，仍然有效："


def recital(view: View, tokens: int) -> str | None:
    """The JSON text of a user message with rules, in at most `tokens`; None if they are not far above, or none fits.

    Wishes and tasks are not repeated: they are done at some time.
    """
    rules = [rule for rule in previous_record(view)[1].rules if not is_weak(rule)]
    heading, user = CHINESE_HEADING if is_chinese(view.transcript) else HEADING, view.counter.dialect.user
    kept = fitting_rules(rules, tokens, view.counter)
    while kept:
        message = user("\n".join([heading, *(f"- {rule}" for rule in kept)]))
        size = view.counter.message(message)
        if size <= tokens:
            return dump(message) if _distance(view) >= FAR * size else None
        kept.pop()
    return None


def _distance(view: View) -> int:
    """The tokens of the messages since the rules were last told."""
    told = [i for i, item in enumerate(view.front) if item.is_replacement or is_recital(item.piece)]
    return sum(message.tokens for message in view.item_messages[told[-1] + 1 :]) if told else 0
