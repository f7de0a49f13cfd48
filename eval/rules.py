"""How many of the rules that people state are still in the view, three windows of other people's talk later.

Sentences of recorded user messages were read and labelled by a person's measure: *rule* is what should hold beyond the
message at hand (an order that lasts, a constraint, a preference, a decision, a limit, an open task), *other* is all
else (one-off requests, questions, stories, what was pasted), and what could be either is *doubtful* and counts nowhere.
The file of labels has digests, never text. Only the half that was looked at during development (`a`) is measured.

Each conversation with a labelled rule is followed by recorded dialogue of its language. What else than rules stands in
the view then is counted too: a record that kept all it was told would keep every rule.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from eval.measure import Figure
from eval.views import MODEL, flat, in_processes, last_view, proxy_for, said, sparse_ends
from proxy.commands.replaying import recorded
from proxy.commands.replaying.recorded import Conversation, Message
from proxy.commands.replaying.report import markdown
from proxy.protocols.chat import ChatCounter
from strategies.core.messages import TokenCounter
from tests.support.data import SHORT

LABELS = Path(__file__).with_name("rule_labels.csv")
HALF, RULE, OTHER = "a", "rule", "other"
WINDOW, WINDOWS = 8_192, 3
FILLERS = {"en": "locomo/", "zh": "crosswoz/"}
"""What the ids of the dialogues begin with that follow, by language."""
APART = 10_000  # characters
_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_BULLET = re.compile(r"\s*(?:(?:[-*+•·–#]+|\(?\d{1,3}[.)]|[a-z][.)])\s+|\(?\d{1,3}[、）]\s*)")
_END = re.compile(r"[。！？]+[”’」』）\"')]*|(?<![.!?…])[.!?…]++[\"'”’)\]*]*+(?=\s)")
_ABBREVIATED = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|approx|mr|mrs|ms|dr|prof|fig)|(?:^|\s)[A-Z])\.$", re.IGNORECASE)


class Found(NamedTuple):
    """A labelled sentence, the kind of its conversation, and whether it is in the view."""

    kind: str
    label: str
    stands: bool


def labels() -> dict[str, str]:
    """The label of each labelled sentence of the half that is measured, by its digest."""
    with LABELS.open(newline="", encoding="utf-8") as file:
        return {row["digest"]: row["label"] for row in csv.DictReader(file) if row["half"] == HALF}


def digest(sentence: str) -> str:
    return sha256(sentence.encode()).hexdigest()[:16]


def sentences(text: str) -> Iterator[str]:
    """The lines and sentences of a message as they were labelled: without list marks, and never out of code."""
    for line in _CODE.sub("", text).splitlines():
        bullet = _BULLET.match(line)
        bare, start = (line[bullet.end() :] if bullet else line).strip(), 0
        for match in _END.finditer(bare):
            if not _ABBREVIATED.search(bare[max(start, match.end() - 8) : match.end()]):
                yield bare[start : match.end()].strip()
                start = match.end()
        yield bare[start:].strip()


def labelled(conversation: Conversation, known: Mapping[str, str]) -> dict[str, str]:
    """The label of each labelled sentence that the user says in a conversation."""
    texts = (said(message) for message in conversation.messages if message["role"] == "user")
    found = dict.fromkeys(each for text in texts for each in sentences(text))
    return {each: known[digest(each)] for each in found if digest(each) in known}


@cache
def _fillers(path: Path, language: str) -> Sequence[Message]:
    of = [one for one in recorded.load(path) if one.id.startswith(FILLERS[language])]
    return list(chain.from_iterable(one.messages for one in of))


def followed(
    conversation: Conversation, dialogue: Sequence[Message], place: int, tokens: int, counter: TokenCounter
) -> Conversation:
    """The conversation, with dialogue from a place on that has so many tokens, and a last question."""
    more: list[Message] = []
    for message in [*dialogue[place:], *dialogue[:place]]:
        tokens -= counter.message(message)
        if tokens < 0:
            break
        more.append(message)
    more.append({"role": "user", "content": "OK. Shall we go on?"})
    return replace(conversation, messages=[*conversation.messages, *more], questions=())


async def measured(case: tuple[Conversation, int]) -> list[Found]:
    """The labelled sentences of a conversation, after the talk that follows; `place` is where that begins."""
    conversation, place = case
    wanted = {each: label for each, label in labelled(conversation, labels()).items() if label in (RULE, OTHER)}
    others = _fillers(SHORT, conversation.language)
    async with proxy_for() as proxy:
        counter = proxy.services.tokenizers.for_model(MODEL, ChatCounter)
        talked = followed(conversation, others, place * 97 % len(others), WINDOW * WINDOWS, counter)
        view = await last_view(proxy, talked, WINDOW, sparse_ends(talked.messages, APART))
    text = flat("\n".join(map(said, view)))
    kind = conversation.id.partition("/")[0]
    return [Found(kind, label, flat(each) in text) for each, label in wanted.items()]


def chosen(path: Path) -> list[Conversation]:
    """The conversations in which a labelled rule is stated, each rule where it is stated first."""
    known, seen = labels(), set[str]()
    conversations = []
    for conversation in recorded.load(path):
        here = {each for each, label in labelled(conversation, known).items() if label == RULE} - seen
        if here:
            conversations.append(conversation)
            seen |= here
    return conversations


def table(path: Path = SHORT) -> str:
    """A row for each kind of conversation, and one for all."""
    cases = [(conversation, place) for place, conversation in enumerate(chosen(path))]
    return rows([one for of in in_processes(measured, cases) for one in of])


def rows(found: Iterable[Found]) -> str:
    by_kind: dict[str, list[Found]] = {}
    for one in found:
        by_kind.setdefault(one.kind, []).append(one)
    all_of = {**by_kind, "all": [one for of in by_kind.values() for one in of]}
    return markdown(
        "labelled sentences in the view | rules | % | others | %",
        [[kind, *_cells(of, RULE), *_cells(of, OTHER)] for kind, of in all_of.items()],
    )


def _cells(found: Sequence[Found], label: str) -> list[str]:
    of = [one.stands for one in found if one.label == label]
    return [f"{sum(of)} of {len(of)}", f"{Figure(sum(of), len(of)).percent:.0f}" if of else "-"]
