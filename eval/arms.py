"""The ways to fill a view, and what of a dialogue each lets the model read.

A view has a share of the dialogue's tokens, all in all: kept messages with their framing, the memory block, and the
messages of a hidden search, call included. The question itself stands after it and is not counted, alike in every
arm. A message counts as read when it is kept whole, or stands verbatim in the block or in the search's answer.

How the block's allowance and the view's size hang together is fixed in two ways. `wide`: the window is 12,800 tokens
or more, so that the block may have 800, as the five hits it is compared with. `tight`: the view is what a condensation
leaves, `target` (half) of what is usable (7/8) in its window; the block may have 1/16 of that window, which is a
seventh of the view.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from eval.measure import SHARES, Cell, Dialogue, Figure, tally
from strategies.core.messages import TokenCounter
from strategies.memory.block import MAX_TOKENS, TOP_K, memory_block, search_result
from strategies.memory.ranking import Hit, Index

TIGHT = 7
"""A view at `target` has so many times the tokens of the block that its window allows."""
SEARCH_HITS = 50
"""The `top_k` of the scripted call."""
SEARCH_TAIL = 8
"""Newest messages that the view has beside the block when a search is made: one part in so many of the view."""


@dataclass(frozen=True)
class Case:
    """One question to one dialogue, and the tokens of the whole view: one part in `share` of the dialogue's."""

    dialogue: Dialogue
    share: int
    evidence: frozenset[int]
    baseline: BM25
    hits: Sequence[Hit]
    query: str
    tokens: int
    counter: TokenCounter


Arm = Callable[[Case], set[int]]


def five_hits(case: Case) -> set[int]:
    """Five hits of BM25 in 800 tokens, and the newest messages."""
    hits = filled(case, min(MAX_TOKENS, case.tokens), TOP_K)
    return hits | newest(case, case.tokens - sum(case.dialogue.tokens[at] for at in hits))


def injected(case: Case, part: int = 1) -> set[int]:
    """The memory block in at most 1 / `part` of the view, and the newest messages."""
    most = min(MAX_TOKENS, case.tokens // part)
    kept = newest(case, case.tokens - most)
    content, used = block_of(case, most, kept)
    return newest(case, case.tokens - used) | told(case, content)


def searched(case: Case, part: int = 2) -> set[int]:
    """The memory block in at most 1 / `part` of the view, few of the newest messages, and for the rest one search."""
    kept = newest(case, case.tokens // SEARCH_TAIL)
    content, used = block_of(case, min(MAX_TOKENS, case.tokens // part), kept)
    room = case.tokens - used - sum(case.dialogue.tokens[at] for at in kept)
    kept |= told(case, content)
    return kept | told(case, found_by(case, room, kept))


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


def filled(case: Case, tokens: int, most: int | None = None) -> set[int]:
    """The best messages by BM25 that fit, at most so many."""
    kept: set[int] = set()
    for at in case.baseline.ranked(case.query):
        if len(kept) == most:
            break
        if case.dialogue.tokens[at] <= tokens:
            tokens -= case.dialogue.tokens[at]
            kept.add(at)
    return kept


def told(case: Case, content: str) -> set[int]:
    """The messages that stand verbatim in a text, with their place and role."""
    texts = enumerate(zip(case.dialogue.texts, case.dialogue.transcript.chain, strict=True))
    return {at for at, (text, message) in texts if f"[{at + 1}] {message.role.value}: {text}" in content}


def cases_of(dialogue: Dialogue, counter: TokenCounter, shares: Sequence[int]) -> Iterator[Case]:
    """A case for each question and share; indexes are built once."""
    baseline, index, total = BM25(dialogue.texts), Index(dialogue.entries), sum(dialogue.tokens)
    for question in dialogue.questions:
        hits = index.search(question.text)
        for share in shares:
            evidence = frozenset(question.places)
            yield Case(dialogue, share, evidence, baseline, hits, question.text, total // share, counter)


ARMS: Mapping[str, tuple[str, Arm]] = {
    "trimmed": ("the newest messages only", lambda case: newest(case, case.tokens)),
    "five hits": ("textbook BM25: five hits in 800 tokens, and the newest messages", five_hits),
    "whole budget": ("textbook BM25: hits only", lambda case: filled(case, case.tokens)),
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
        for case in cases_of(dialogue, counter, SHARES)
        for name, (_, arm) in ARMS.items()
    )


K1, B = 1.5, 0.75
_TOKEN = re.compile(r"[a-z0-9]+(?:[._/'-][a-z0-9]+)*|[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]+")


class BM25:
    """BM25 over words, and 2-4 character n-grams where there are no spaces."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(_terms(text)) for text in texts]
        self._frequencies = Counter(term for counts in self._counts for term in counts)
        self._lengths = [counts.total() for counts in self._counts]
        self._mean = sum(self._lengths) / len(texts)
        self.ranked = cache(self._ranked)

    def _ranked(self, query: str) -> list[int]:
        """The numbers of the texts that share a term with the query, best first."""
        scores: defaultdict[int, float] = defaultdict(float)
        for term in set(_terms(query)) & self._frequencies.keys():
            frequency = self._frequencies[term]
            rarity = math.log(1 + (len(self._counts) - frequency + 0.5) / (frequency + 0.5))
            for at, counts in enumerate(self._counts):
                if times := counts[term]:
                    damping = K1 * (1 - B + B * self._lengths[at] / self._mean)
                    scores[at] += times * (K1 + 1) / (times + damping) * rarity
        return sorted(scores, key=lambda at: (-scores[at], at))


def _terms(text: str) -> Iterator[str]:
    for token in _TOKEN.findall(text.lower()):
        if token[0].isascii():
            yield token
        else:
            yield from (token[i : i + size] for size in (2, 3, 4) for i in range(len(token) - size + 1))
