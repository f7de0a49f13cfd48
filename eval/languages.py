"""Rules in eight languages, and statements side by side, kept while people talk of other things.

A user states eight rules in the middle of talk, one in a message, and then talks on for five windows. A rule counts
while it stands word for word in the view. The talk is made of sentences with other names, places and numbers each time
(`languages.toml`). That makes it plainer than people's talk, and a rule rarer in it than in theirs.

*Side by side*: two statements that are both true, in one message, or a statement and, some turns later, what changes
it. After a window of talk both must stand in the view as they were said, and nothing may say that one was replaced.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from eval.views import flat, grown, in_processes, last_view, proxy_for, record_in, said, sparse_ends, values_of
from proxy.commands.replaying.recorded import Conversation, Message
from proxy.commands.replaying.report import markdown

DATA = Path(__file__).with_name("languages.toml")
LANGUAGES = ("en", "zh", "de", "es", "fr", "ja", "ko", "ru")
WINDOW, WINDOWS = 4_096, 5
APART = 1_500  # characters
BETWEEN = 6
"""Turns of talk between a statement and what changes it."""
_REPLACED = re.compile(r"\((?:was|were|formerly|previously|replac\w+|before)\b|[（(]?取代", re.IGNORECASE)


class Kept(NamedTuple):
    """How many of the sentences stand in the view after each window of talk."""

    language: str
    of: int
    after: Sequence[int]


class Beside(NamedTuple):
    """Whether both statements stand in the view, and whether the record says that one was replaced."""

    kind: str
    stand: bool
    says_replaced: bool


@cache
def data() -> Mapping[str, Any]:
    return tomllib.loads(DATA.read_text("utf-8"))


def talk(language: str, random: Random) -> Iterator[str]:
    """Sentences of other talk, without end; none twice in a row."""
    of, last = data()[language], ""
    while True:
        template = random.choice([each for each in of["talk"] if each != last])
        last = template
        words = {part: random.choice(of[part]) for part in ("name", "place", "thing")}
        yield template.format(
            n=random.randint(11, 97),
            m=random.randint(2, 9),
            t=f"{random.randint(7, 22)}:{random.randint(10, 59)}",
            **words,
        )


def turn(sentences: Iterator[str], stated: str, join: str) -> list[Message]:
    """A message of the user, with a statement in its middle, and a reply."""
    before, after, *reply = (next(sentences) for _ in range(5))
    text = join.join(filter(None, (before, stated, after)))
    return [{"role": "user", "content": text}, {"role": "assistant", "content": join.join(reply)}]


def conversation(language: str, stated: Sequence[str], tokens: int, between: int = 0) -> Conversation:
    """Talk in which the user states some things, one in a message, and then goes on for about so many tokens."""
    random = Random(language)
    sentences, join = talk(language, random), "" if language in ("zh", "ja") else " "
    said_first = [*turn(sentences, "", join), *turn(sentences, "", join)]
    for sentence in stated:
        said_first += turn(sentences, sentence, join)
        for _ in range(between):
            said_first += turn(sentences, "", join)
    later: list[Message] = []
    while sum(len(said(message)) for message in later) < tokens * CHARACTERS[language]:
        later += turn(sentences, "", join)
    return Conversation(language, [*said_first, *later], language=language)


CHARACTERS = {"en": 4.2, "zh": 1.2, "de": 3.4, "es": 3.8, "fr": 3.6, "ja": 1.1, "ko": 1.6, "ru": 3.0}
"""Characters of a token of talk, about."""


async def rules_kept(language: str) -> Kept:
    """The rules of a language in the view after each window of talk."""
    rules = data()[language]["rules"]
    talked = conversation(language, rules, WINDOW * WINDOWS)
    stated = max(at for at, message in enumerate(talked.messages) if any(rule in said(message) for rule in rules))
    rest = [len(said(message)) for message in talked.messages[stated + 1 :]]
    after, window = list[int](), sum(rest) / WINDOWS
    async with proxy_for() as proxy:
        async for playing in grown(proxy, talked, WINDOW, ends=sparse_ends(talked.messages, APART)):
            done = sum(rest[: max(playing.end - stated - 1, 0)])
            if done >= window * (len(after) + 1) - 1 or playing.end == len(talked.messages):
                view = flat("\n".join(map(said, values_of(playing.view))))
                after.append(sum(flat(rule) in view for rule in rules))
    return Kept(language, len(rules), after)


async def beside(case: tuple[str, Sequence[str]]) -> Beside:
    """A pair of one kind: both said in one message, or the second some turns after the first."""
    kind, pair = case
    language = "zh" if re.search(r"[一-鿿]", pair[0]) else "en"
    together = kind == "pairs"
    stated = ["\n".join(pair)] if together else pair
    talked = conversation(language, stated, WINDOW, 0 if together else BETWEEN)
    async with proxy_for() as proxy:
        view = await last_view(proxy, talked, WINDOW, sparse_ends(talked.messages, APART))
    text, record = flat("\n".join(map(said, view))), record_in(view)
    return Beside(kind, all(flat(each) in text for each in pair), _REPLACED.search(record) is not None)


def table() -> str:
    kept = in_processes(rules_kept, LANGUAGES)
    cases = [(kind, pair) for kind in ("pairs", "changes") for pair in data()["beside"][kind]]
    return f"{rules_table(kept)}\n\n{beside_table(in_processes(beside, cases))}"


def rules_table(kept: Sequence[Kept]) -> str:
    head = ["rules in the view after", *(f"window {nth}" for nth in range(1, WINDOWS + 1))]
    return markdown(" | ".join(head), [[one.language, *(f"{each} of {one.of}" for each in one.after)] for one in kept])


def beside_table(found: Sequence[Beside]) -> str:
    kinds = {"pairs": "both true, said in one message", "changes": "the later one changes the earlier one"}

    def count(kind: str, holds: Callable[[Beside], bool]) -> str:
        of = [one for one in found if one.kind == kind]
        return f"{sum(map(holds, of))} of {len(of)}"

    rows = [
        [told, count(kind, lambda one: one.stand), count(kind, lambda one: one.says_replaced)]
        for kind, told in kinds.items()
    ]
    return markdown("side by side | both stand | said to be replaced", rows)
