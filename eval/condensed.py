"""Memory beside each strategy: what of a dialogue the model reads when a strategy made the view.

Each strategy condenses the dialogue, with a last question after it that is not counted, and the ladder of the proxy
after the strategy. It plans in the window whose target the view is, for a goal that leaves half of the view, at most
800 tokens, for the block; before a search an eighth of the view is left for messages. A view that is larger than
allowed all the same is not read at all. A summarizer's answer is one fixed text that holds nothing of the dialogue:
what is measured is what stands verbatim.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product

from eval.arms import Case, block_of, cases_of, found_by, told
from eval.measure import SHARES, Cell, Dialogue, Figure, tally
from strategies import LADDER, LADDER_OPTIONS, stages
from strategies.core.budget import Budget
from strategies.core.messages import Reader, TokenCounter
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.memory.block import MAX_TOKENS, appears_in
from strategies.memory.ranking import Entry
from tests.support.planning import planned

STRATEGIES = (
    "recent", "mask", "half-window", "mask+half-window", "mask+extract", "summary", "semantic", "rolling",
    "dynacontext", "extract",
)  # fmt: skip
SUMMARY = "The user and the assistant talked about several things, one after the other, and agreed on the next steps."
"""What the scripted summarizer answers."""
WINDOWS = 16 / 7
"""The window whose target (1/2 of 7/8) a view is, in views."""
_QUESTION = {"role": "user", "content": "One more question about what we said before."}
ARMS = ("alone", "inject", "search")
_SEARCH_VIEW = 8


def measured(dialogues: Sequence[Dialogue], counter: TokenCounter) -> dict[Cell, Figure]:
    """The figures of each strategy alone, with injection, and with one search; an arm is named `strategy, arm`."""
    return tally(found for dialogue in dialogues for found in _found(dialogue, counter))


def _found(dialogue: Dialogue, counter: TokenCounter) -> Iterator[tuple[Cell, bool]]:
    whole = sum(dialogue.tokens)
    cases = list(cases_of(dialogue, counter, SHARES))
    for name, arm, share in product(STRATEGIES, ARMS, SHARES):
        most = 0 if arm == "alone" else min(MAX_TOKENS, whole // share // 2)
        goal = whole // share // _SEARCH_VIEW if arm == "search" else whole // share - most
        view = condensed(dialogue, name, goal, int(whole / share * WINDOWS), counter)
        stands = appears_in([item.message.text for item in view.items])
        messages = enumerate(dialogue.transcript.chain)
        kept = {at for at, message in messages if stands(Entry(str(at), message.role, message.text, at))}
        used = view.tokens - view.items[-1].message.tokens
        for case in (each for each in cases if each.share == share):
            read = _read(case, kept, used, most, searches=arm == "search") if used <= case.tokens else set()
            yield (f"{name}, {arm}", dialogue.language, share), case.evidence <= read


def condensed(dialogue: Dialogue, name: str, goal: int, window: int, counter: TokenCounter) -> View:
    """The view that a strategy makes of a dialogue, the ladder after it."""
    body = json.dumps(_QUESTION)
    question = Reader().read(body, _QUESTION, counter.message(_QUESTION), counter.dialect)
    view = fold(Transcript((*dialogue.transcript.chain, question), dialogue.transcript.systems), (), 0, counter)
    made = stages((*name.split("+"), *LADDER), LADDER_OPTIONS, {})
    return planned(made, view, Budget.of(window).with_goal(goal + question.tokens), SUMMARY).view


def _read(case: Case, kept: set[int], used: int, most: int, *, searches: bool) -> set[int]:
    """What is read of a view that has `used` tokens and shows `kept`, of the block and of the search."""
    content, block_tokens = block_of(case, min(most, case.tokens - used), kept)
    read = kept | told(case, content)
    if searches:
        read |= told(case, found_by(case, case.tokens - used - block_tokens, read))
    return read
