"""Asking: which passages a user message asks for, by what it names, and whether they are worth a memory block.

A block costs tokens in every request until the next condensation. So it must match as well as the best of what the view
shows, and no passage is put in that says less of the message than a better one does: a model may take it for the
answer. A message that asks, by its question marks, gets what matches. Any other, order or talk, must name something
that only hidden messages have, and rare enough to be no chance; the block before it is short. No list of words decides,
so this holds in any language. docs/internals/quality.md has what it saves and costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf

from strategies.core.client_context import users_words
from strategies.core.ledger import split_ledger
from strategies.core.messages import Role
from strategies.core.terms import terms
from strategies.core.transcript import reads_chinese
from strategies.memory.block import BESIDE
from strategies.memory.ranking import Hit

LONGEST = 8_000  # characters of a message that are read, half of them at its end. The text between them was pasted.
SHARE = 0.6  # the share of a message that its questions must have
UNASKED = 128  # the maximum tokens of a block before a message that does not ask: about one passage
LEAST_MATCH, LEAST_MATCH_OF_CHARACTERS = 1.0, 1.5
"""The share of the best visible hit's score that the best hit of each hidden passage must have.

In scripts without spaces a phrase counts once for each of its parts, so that scores are further apart.
"""
LEAST_NAMED = 0.22
"""How rare that must be which a message names and only hidden messages have, from 0 to nearly 1."""
DOUBT = 0.5  # the rarity of an unmatched term that each message is taken to have besides its own
LEAST_SHARED = 1 / 3  # a passage that says more than this share of the words of something better says less of the same
_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_SENTENCE = re.compile(r"[^\n。！？!?.]*(?:\.(?!\s)[^\n。！？!?.]*)*[。！？!?.]*")
_QUESTION = re.compile(r"[?？؟][\"'”’)\]）」』]*\s*$")


def users_own(text: str) -> str:
    """What a user message says in words of its own, without code; of a long one its beginning and its end."""
    words = _CODE.sub("", users_words(text)).strip()
    return words if len(words) <= LONGEST else f"{words[: LONGEST // 2]}\n{words[-LONGEST // 2 :]}"


def asks(words: str) -> bool:
    """Whether a message consists mainly of questions."""
    sentences = (match.group().strip() for match in _SENTENCE.finditer(words))
    return sum(len(each) for each in sentences if _QUESTION.search(each)) >= SHARE * len(words)


def worth_showing(
    words: str, hits: Sequence[Hit], is_hidden: Callable[[Hit], bool], records: Iterable[str] = ()
) -> list[Hit]:
    """The hidden ones of a message's hits (best first) that are worth showing before it.

    Those beside a hit that matches well belong to it: an answer rarely has the words of its question. A line of the
    records may say more than a passage does.
    """
    hidden = [hit for hit in hits if is_hidden(hit)]
    at_places = {hit.position for hit in hidden}
    visible = [hit for hit in hits if hit.position not in at_places]
    least = max((hit.score for hit in visible), default=0.0)
    least *= LEAST_MATCH_OF_CHARACTERS if reads_chinese(words) else LEAST_MATCH
    near = {hit.position + step for hit in hidden if hit.score >= least for step in range(-BESIDE, BESIDE + 1)}
    rounds = [*_rounds(hit for hit in hidden if hit.position in near)]
    rivals = dict[frozenset[str], float]()  # what is said of the message, and how well the best that says it matches
    for each in (*rounds, *([hit] for hit in visible)):
        rivals[_said(each)] = max(_best(each), rivals.get(_said(each), 0.0))
    lines, asked_for = "\n".join(split_ledger(text)[0] for text in records).splitlines(), frozenset(terms(words))
    rivals.update((asked_for.intersection(terms(line)), inf) for line in lines)
    told = {hit.position for each in rounds if not _is_less(_said(each), _best(each), rivals) for hit in each}
    wanted = [hit for hit in hidden if hit.position in told]
    if not wanted or asks(words):
        return wanted
    known = {term: rarity for hit in hits for term, rarity in hit.said.items()}
    passage = [hit for hit in hidden if abs(hit.position - wanted[0].position) <= BESIDE]
    named = sum(known[term] ** 2 for term in _said(passage) - _said(visible))
    return wanted if named >= LEAST_NAMED * (sum(known.values()) + DOUBT) else []


def _is_less(said: frozenset[str], score: float, rivals: Mapping[frozenset[str], float]) -> bool:
    """Whether something that matches better says all of this and more. What has hardly a word of it may answer it."""
    words = len(said) / LEAST_SHARED
    return bool(said) and any(score < better and said < more and len(more) < words for more, better in rivals.items())


def _said(hits: Iterable[Hit]) -> frozenset[str]:
    return frozenset(chain.from_iterable(hit.said for hit in hits))


def _best(hits: Iterable[Hit]) -> float:
    return max(hit.score for hit in hits)


def _rounds(hits: Iterable[Hit]) -> Iterator[list[Hit]]:
    """The rounds that hits are of; a user who answers a question goes on with its round."""
    round_: list[Hit] = []
    for hit in sorted(hits, key=lambda hit: hit.position):
        entry, before = hit.entry, round_[-1] if round_ else None
        if before is not None:
            begins = entry.role is Role.USER and not entry.part and not _QUESTION.search(before.entry.text)
            if begins or hit.position - before.position > BESIDE:
                yield round_
                round_ = []
        round_.append(hit)
    if round_:
        yield round_
