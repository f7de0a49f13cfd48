"""How many of the rules that people state are heard, and how many of the heard sentences are rules.

Sentences of recorded user messages were read and labelled by a person's measure: *rule* is what should hold beyond the
message at hand (an order that lasts, a constraint, a preference, a decision, a limit, an open task), *other* is all
else (one-off requests, questions, stories, what was pasted), and what could be either is *doubtful* and counts nowhere.
The file of labels has digests, never text. A sentence belongs to one of two halves: `a` was looked at while the cues
were written, `b` was only counted.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from eval.measure import Figure
from proxy.replaying import recorded
from proxy.replaying.report import markdown
from strategies.core.messages import Role
from strategies.core.rules import find_rules, units
from tests.support.planning import counted
from tests.support.transcripts import WORDS

LABELS = Path(__file__).with_name("rule_labels.csv")
HALVES = {"a": "looked at", "b": "only counted"}


def labels() -> dict[str, tuple[str, str]]:
    """Half and label of each labelled sentence, by its digest."""
    with LABELS.open(newline="", encoding="utf-8") as file:
        return {row["digest"]: (row["half"], row["label"]) for row in csv.DictReader(file)}


def digest(sentence: str) -> str:
    return sha256(sentence.encode()).hexdigest()[:16]


def said(paths: Iterable[Path]) -> Iterator[str]:
    """What users said in recorded conversations, each text once; output of tools is left out."""
    seen: set[str] = set()
    for conversation in (each for path in paths for each in recorded.load(path)):
        for message in counted(conversation.messages, WORDS).chain:
            if message.role is Role.USER and message.words and message.words not in seen:
                seen.add(message.words)
                yield message.words


def table(paths: Iterable[Path]) -> str:
    """The table of both halves."""
    known, heard, found = labels(), set[str](), set[str]()
    for text in said(paths):
        sentences = {digest(unit) for unit in units(text)} & known.keys()
        if sentences:
            found |= sentences
            heard |= sentences & {digest(rule) for rule in find_rules(text)}
    every, listed = Counter(known[each] for each in found), Counter(known[each] for each in heard)
    rows = [[HALVES[half], *_cells(half, every, listed)] for half in HALVES]
    return markdown("half | sentences | rules | heard, % | other | listed all the same | of the lines, none, %", rows)


def _cells(half: str, every: Counter[tuple[str, str]], listed: Counter[tuple[str, str]]) -> list[str]:
    rules, others = every[half, "rule"], every[half, "other"]
    heard, wrong = listed[half, "rule"], listed[half, "other"]
    sentences = sum(number for (of, _), number in every.items() if of == half)
    cells = (sentences, rules, Figure(heard, rules).percent, others, wrong, Figure(wrong, heard + wrong).percent)
    return [f"{cell:.0f}" for cell in cells]
