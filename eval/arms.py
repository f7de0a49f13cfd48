"""What of a dialogue the model reads: in views of the newest messages with memory, and in those that strategies make.

A view has a share of the dialogue's tokens, all in all: kept messages with their framing, the memory block, and the
messages of a hidden search, call included. The question itself stands after it and is not counted, alike in every
arm. A message counts as read when it is kept whole, or stands verbatim in the block or in the search's answer.

How the block's allowance and the view's size hang together is fixed in two ways. `wide`: the window is 12,800 tokens
or more, so that the block may have 800. `tight`: the view is what a condensation leaves, `target` (half) of what is
usable (7/8) in its window; the block may have 1/16 of that window, which is a seventh of the view.

Each strategy condenses the dialogue, with a last question after it that is not counted, and the ladder of the proxy
after the strategy. It plans in the window whose target the view is, for a goal that leaves half of the view, at most
800 tokens, for the block; before a search an eighth of the view is left for messages. A view that is larger than
allowed all the same is not read at all. A summarizer's answer is one fixed text that holds nothing of the dialogue:
what is measured is what stands verbatim.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from eval.measure import SHARES, Cell, Dialogue, Figure, tally
from strategies import LADDER, LADDER_OPTIONS, stages
from strategies.core.budget import Budget
from strategies.core.messages import Reader, TokenCounter
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.memory.block import MAX_TOKENS, TOP_K, appears_in, memory_block, search_result
from strategies.memory.ranking import Entry, Hit, Index, message_entries
from tests.support.planning import planned

TIGHT = 7
"""A view at `target` has so many times the tokens of the block that its window allows."""
SEARCH_HITS = 50
"""The `top_k` of the scripted call."""
SEARCH_VIEW = 8
"""One part in so many of the view is for messages when a search is made."""
STRATEGIES = (
    "recent", "mask", "half-window", "mask+half-window", "mask+extract", "summary", "semantic", "rolling",
    "dynacontext", "extract",
)  # fmt: skip
MEMORY = ("alone", "inject", "search")
_SENTENCE = "The user and the assistant talked about several things, one after the other, and agreed on the next steps."
SUMMARY = f"<summary>{' '.join([_SENTENCE] * 6)}</summary>"
"""What the scripted summarizer answers; a shorter record would be refused."""
WINDOWS = 16 / 7
"""The window whose target (1/2 of 7/8) a view is, in views."""
_QUESTION = {"role": "user", "content": "One more question about what we said before."}


class Case(NamedTuple):
    """One question to one dialogue, and the tokens of the whole view: one part in `share` of the dialogue's."""

    dialogue: Dialogue
    share: int
    evidence: AbstractSet[int]
    hits: Sequence[Hit]
    query: str
    tokens: int
    counter: TokenCounter


def cases_of(dialogue: Dialogue, counter: TokenCounter, shares: Sequence[int] = SHARES) -> Iterator[Case]:
    """A case for each question and share; the index is built once."""
    chain, total = enumerate(dialogue.transcript.chain), sum(dialogue.tokens)
    index = Index([entry for at, message in chain for entry in message_entries(str(at), message, at)])
    for question in dialogue.questions:
        hits = index.search(question.text)
        for share in shares:
            yield Case(dialogue, share, {*question.places}, hits, question.text, total // share, counter)


# -- the newest messages and memory ------------------------------------------------------------------------


def injected(case: Case, part: int = 1) -> set[int]:
    """The memory block in at most 1 / `part` of the view, and the newest messages."""
    most = min(MAX_TOKENS, case.tokens // part)
    content, used = block_of(case, most, newest(case, case.tokens - most))
    return newest(case, case.tokens - used) | told(case, content)


def searched(case: Case, part: int = 2) -> set[int]:
    """The memory block in at most 1 / `part` of the view, few of the newest messages, and for the rest one search."""
    kept = newest(case, case.tokens // SEARCH_VIEW)
    used = sum(case.dialogue.tokens[at] for at in kept)
    return with_memory(case, kept, used, min(MAX_TOKENS, case.tokens // part), searches=True)


ARMS: Mapping[str, tuple[str, Callable[[Case], set[int]]]] = {
    "trimmed": ("the newest messages only", lambda case: newest(case, case.tokens)),
    "inject": ("**memory block**, and the newest messages", injected),
    "inject, tight": ("the same, block of a seventh of the view", partial(injected, part=TIGHT)),
    "search": ("**memory block and one search**", searched),
    "search, tight": ("the same, block of a seventh of the view", partial(searched, part=TIGHT)),
}
"""Each with what is read."""


def measured(dialogues: Iterable[Dialogue], counter: TokenCounter) -> dict[Cell, Figure]:
    """The figure of each arm in each language, for each size of the view."""
    return tally(
        ((name, dialogue.language, case.share), case.evidence <= arm(case))
        for dialogue in dialogues
        for case in cases_of(dialogue, counter)
        for name, (_, arm) in ARMS.items()
    )


# -- memory beside a strategy ------------------------------------------------------------------------------


def measured_beside(dialogues: Iterable[Dialogue], counter: TokenCounter) -> dict[Cell, Figure]:
    """The figures of each strategy alone, with injection, and with one search; an arm is named `strategy, arm`."""
    return tally(found for dialogue in dialogues for found in _beside(dialogue, counter))


def _beside(dialogue: Dialogue, counter: TokenCounter) -> Iterator[tuple[Cell, bool]]:
    whole = sum(dialogue.tokens)
    cases = list(cases_of(dialogue, counter))
    for name, arm, share in product(STRATEGIES, MEMORY, SHARES):
        most = 0 if arm == "alone" else min(MAX_TOKENS, whole // share // 2)
        goal = whole // share // SEARCH_VIEW if arm == "search" else whole // share - most
        view = condensed(dialogue, name, goal, int(whole / share * WINDOWS), counter)
        stands = appears_in([item.message.text for item in view.items])
        messages = enumerate(dialogue.transcript.chain)
        kept = {at for at, message in messages if stands(Entry(str(at), message.role, message.text, at))}
        used = view.tokens - view.items[-1].message.tokens
        for case in (each for each in cases if each.share == share):
            fits = used <= case.tokens
            read = with_memory(case, kept, used, most, searches=arm == "search") if fits else set()
            yield (f"{name}, {arm}", dialogue.language, share), case.evidence <= read


def condensed(dialogue: Dialogue, name: str, goal: int, window: int, counter: TokenCounter) -> View:
    """The view that a strategy makes of a dialogue, the ladder after it."""
    body = json.dumps(_QUESTION)
    question = Reader().read(body, _QUESTION, counter.message(_QUESTION), counter.dialect)
    view = fold(Transcript((*dialogue.transcript.chain, question), dialogue.transcript.systems), (), 0, counter)
    made = stages((*name.split("+"), *LADDER), LADDER_OPTIONS, {})
    return planned(made, view, Budget.of(window).with_goal(goal + question.tokens), SUMMARY).view


# -- parts of a view ---------------------------------------------------------------------------------------


def with_memory(case: Case, kept: set[int], used: int, most: int, *, searches: bool) -> set[int]:
    """What is read of a view that shows `kept` in `used` tokens, of a block of at most `most`, and of the search."""
    content, block_tokens = block_of(case, min(most, case.tokens - used), kept)
    read = kept | told(case, content)
    if searches:
        read |= told(case, found_by(case, case.tokens - used - block_tokens, read))
    return read


def block_of(case: Case, most: int, kept: AbstractSet[int]) -> tuple[str, int]:
    """The memory block beside kept messages, and its tokens, at most so many."""
    raw = memory_block(case.hits, case.counter, most, TOP_K, lambda entry: entry.place in kept)
    if raw is None:
        return "", 0
    body: dict[str, Any] = json.loads(raw)
    return body["content"], case.counter.message(body)


def found_by(case: Case, room: int, kept: AbstractSet[int]) -> str:
    """The answer of a scripted search with the question as its query; it, the call and their framing fit `room`."""
    arguments = json.dumps({"query": case.query, "top_k": SEARCH_HITS}, ensure_ascii=False)
    function = {"name": "search_memory", "arguments": arguments}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    frame = case.counter.message(call) + case.counter.message({"role": "tool", "tool_call_id": "1", "content": ""})
    return search_result(case.hits, case.counter, room - frame, SEARCH_HITS, lambda entry: entry.place in kept)


def newest(case: Case, tokens: int) -> set[int]:
    """The newest messages that fit, without a gap."""
    kept: set[int] = set()
    for at in reversed(range(len(case.dialogue.tokens))):
        tokens -= case.dialogue.tokens[at]
        if tokens < 0:
            break
        kept.add(at)
    return kept


def told(case: Case, content: str) -> set[int]:
    """The messages that stand verbatim in a text, with their place and role."""
    return {at for at, line in enumerate(case.dialogue.lines) if line in content}
