"""Asking: whether a user message is worth a memory block, and what is searched for it.

A block costs tokens in every request until the next condensation. So it is put in only before a message that mainly
asks, or asks about what was said: others go on with what is in view, and the words that they share with old messages
are those of the subject. And what has left the view must match about as well as the best of what the view shows, else
the question is about the latter. That holds for each passage, because a model may take a worse one for the answer.
docs/internals/quality.md has what both save and cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from strategies.core.client_context import users_words
from strategies.core.messages import Role
from strategies.core.terms import terms
from strategies.core.transcript import reads_chinese
from strategies.memory.block import BESIDE
from strategies.memory.ranking import Hit

LONGEST = 8_000  # characters of a message that are read, half of them at its end. The text between them was pasted.
SHARE = 0.6  # the share of a message that its questions must have, unless one of them refers to what was said
LEAST_MATCH, LEAST_MATCH_OF_CHARACTERS = 0.8, 1.2
"""The share of the best visible hit's score that the best hit of each hidden passage must have.

In scripts without spaces a phrase counts once for each of its parts, so that scores are further apart.
"""
LESS_SAID = 0.8  # the factor for a message with fewer of the question's words than a better one of the round beside
_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_SENTENCE = re.compile(r"[^\n。！？!?.]*(?:\.(?!\s)[^\n。！？!?.]*)*[。！？!?.]*")
_QUESTION = re.compile(r"[?？][\"'”’)\]）」』]*\s*$")
_ASKS = re.compile(
    r"^\W*(?:(?:and|so|but|ok(?:ay)?|well|also|then|now|again|please|by the way)\b\W*)*"
    r"(?:(?:what|which|who|whose|whom|when|where|why|how)\b|(?:tell|show|give|remind|recall|repeat)\b)"
    r"|(?:吗|呢|么)\W*$"
    r"|什么|哪[里儿些个家位年天种]|多少|怎么|怎样|如何|为何|为什么|是否|是不是|有没有|告诉我|提醒我|回忆|再说一遍",
    re.IGNORECASE,
)
_REFERS = re.compile(
    r"\b(?:remind|recall|remember|earlier|previous(?:ly)?|last time|back then|at the (?:start|beginning)|before|again"
    r"|(?:I|we|you|he|she|they)(?:['’]d| had| have|['’]ve)? (?:ever )?(?:said|told|mentioned|gave|agreed|decided|chose"
    r"|picked|discussed|talked|settled|planned|promised|noted)"
    r"|did (?:I|we|you) (?:say|tell|mention|give|agree|decide|choose|pick|discuss|talk|settle|plan|promise|note))\b"
    r"|之前|刚才|刚刚|上次|以前|先前|前面|早些|最初|一开始|当时|那时|提到|说过|提过|讲过|聊过|记得",
    re.IGNORECASE,
)


def asked(text: str) -> str:
    """The questions of a user message that mainly asks, or that refers to what was said; "" for any other message."""
    words = _CODE.sub("", users_words(text)).strip()
    if len(words) > LONGEST:
        words = f"{words[: LONGEST // 2]}\n{words[-LONGEST // 2 :]}"
    sentences = [match.group().strip() for match in _SENTENCE.finditer(words)]
    asking = [one for one in sentences if _QUESTION.search(one) or _ASKS.search(one)]
    is_about_it = sum(map(len, asking)) >= SHARE * len(words) or any(map(_REFERS.search, asking))
    return "\n".join(asking) if is_about_it else ""


def worth_showing(question: str, hits: Sequence[Hit], is_hidden: Callable[[Hit], bool]) -> list[Hit]:
    """The hidden ones of a question's hits (best first) that match about as well as the best that the view shows.

    Those beside such a hit belong to it: an answer rarely has the words of its question.
    """
    hidden = [hit for hit in hits if is_hidden(hit)]
    at_places = {hit.position for hit in hidden}
    visible = next((hit.score for hit in hits if hit.position not in at_places), 0.0)
    least = visible * (LEAST_MATCH_OF_CHARACTERS if reads_chinese(question) else LEAST_MATCH)
    matching = [hit.position for hit in hidden if hit.score >= least]
    near = {at + step for at in matching for step in range(-BESIDE, BESIDE + 1)}
    return _by_own_words(question, [hit for hit in hidden if hit.position in near])


def _by_own_words(question: str, hits: Sequence[Hit]) -> list[Hit]:
    """The hits, best first, where one that says less of the question than a better one of another round counts less.

    It owes its score to that neighbour, as "The ticket number of Greta is 71964." behind what was said about Farid's.
    An answer with none of the question's words keeps its score.
    """
    asked_for = set(terms(question))
    own = {hit.position: asked_for.intersection(terms(hit.entry.text)) for hit in hits}
    at = {hit.position: hit for hit in hits}
    rounds, number = {}, 0
    for position in sorted(at):
        entry, before = at[position].entry, at.get(position - 1)
        # The user who answers a question goes on with its round.
        is_answer = before is not None and _QUESTION.search(before.entry.text)
        number += entry.role is Role.USER and not entry.part and not is_answer
        rounds[position] = number

    def weighed(hit: Hit) -> Hit:
        here, said = hit.position, own[hit.position]
        near = (at[there] for there in range(here - BESIDE, here + BESIDE + 1) if there in at)
        better = (each.position for each in near if each.score > hit.score and rounds[each.position] != rounds[here])
        is_less = said and any(said < own[there] for there in better)
        return replace(hit, score=LESS_SAID * hit.score) if is_less else hit

    return sorted(map(weighed, hits), key=attrgetter("score"), reverse=True)
