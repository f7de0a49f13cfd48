"""Quotes: units of messages, word for word and whole, in the order in which they are worth keeping.

The order is by rarity (`core.rarity`), in steps, so that small differences decide nothing; among equals a unit with a
name or a number comes first, then the newest. What is kept stands in the order in which it was said, without holes
inside a paragraph. Units that differ in their values only ("one pill at 8:00", "one pill at 20:00") stand together,
oldest first, each with the number of its message: a reader in order knows which one counts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from strategies.core.findings import Said
from strategies.core.messages import TokenCounter
from strategies.core.rarity import Rarity
from strategies.core.units import Kind, Unit

STEP = 25  # of a score
_LEAST = 2  # terms of a unit without a name
_MISSES = 16  # units in a row that do not fit, after which the rest is not tried
_VALUE = re.compile(r"\d+(?:[.,:/-]\d+)*")


class Quote(NamedTuple):
    message: int  # the chain index of its message
    place: int  # its number among the units of the message
    unit: Unit
    rank: tuple[int, bool, int, int]  # lower is kept first

    @property
    def fills_only(self) -> bool:
        """Whether it is kept only where it stands between two that are kept."""
        return self.rank[0] > 0

    @property
    def paragraph(self) -> tuple[int, int]:
        return self.message, self.unit.paragraph


def quotes(messages: Iterable[tuple[int, Iterable[Said]]], rarity: Rarity) -> list[Quote]:
    """The units of messages, given with their chain indices, best first.

    Behind them stands what fills paragraphs only: wordings that were said again later, and units such as "Thanks!",
    because room that nothing needs is for turns.
    """
    found: dict[str, Quote] = {}
    fillers: list[Quote] = []
    for index, units in messages:
        for place, (unit, terms, has_name) in enumerate(units):
            if earlier := found.pop(unit.text, None):
                fillers.append(earlier._replace(rank=(1, *earlier.rank[1:])))
            if len(terms) < _LEAST and not (has_name or unit.intro):
                fillers.append(Quote(index, place, unit, (1, True, -index, place)))
            else:
                rank = (-(rarity.score(terms) // STEP), not has_name, -index, place)
                found[unit.text] = Quote(index, place, unit, rank)
    return [*sorted(found.values(), key=lambda quote: quote.rank), *fillers]


def is_quotable(quote: Quote, most: int, counter: TokenCounter) -> bool:
    """Whether a unit has at most `most` tokens, and is no code or log."""
    text = quote.unit.text
    is_short = (
        len(text.encode("utf-8", "surrogatepass")) * counter.factor <= most
    )  # nearly all are, and are not counted
    return quote.unit.may_be_quoted and (is_short or counter.text(text) <= most)


def chosen(
    ordered: Sequence[Quote],
    room: int,
    most: int,
    counter: TokenCounter,
    skips: Callable[[Quote], bool] = lambda _: False,
) -> tuple[list[Quote], int]:
    """The quotes that fit into `room` tokens, in the order in which they were said, and what is left of the room."""
    paragraphs: dict[tuple[int, int], dict[int, Quote]] = defaultdict(dict)
    for quote in ordered:
        paragraphs[quote.paragraph][quote.place] = quote
    kept: dict[tuple[int, int], dict[int, Quote]] = defaultdict(dict)
    introduced: set[tuple[int, str]] = set()
    forms: Counter[str] = Counter()
    number = counter.text(f"({max((quote.message for quote in ordered), default=0) + 1}) ")
    misses = 0
    for quote in ordered:
        if quote.fills_only:
            break
        here, intro = kept[quote.paragraph], (quote.message, quote.unit.intro)
        if quote.place in here or not quote.unit.may_be_quoted:
            continue
        # What stands between it and the quotes of its paragraph belongs to it.
        span = range(min((*here, quote.place)), max((*here, quote.place)) + 1)
        more = [paragraphs[quote.paragraph].get(place) for place in span if place not in here]
        cost = counter.text(f"- {intro[1]}") + 1 if intro[1] and intro not in introduced else 0
        sizes = [counter.text(written(each)) + 1 if each else room + 1 for each in more]
        # The second of a form brings the numbers of both.
        cost += sum(number * (2 if forms[_form(each)] == 1 else min(forms[_form(each)], 1)) for each in more if each)
        if cost + sum(sizes) > room or max(sizes) > most:
            misses += 1
            if misses == _MISSES:
                break
            continue
        if any(each and skips(each) for each in more):
            continue
        room -= cost + sum(sizes)
        misses = 0
        introduced.add(intro)
        forms.update(_form(each) for each in more if each)
        here.update((each.place, each) for each in more if each)
    return sorted(quote for here in kept.values() for quote in here.values()), room


def written(quote: Quote, mark: str = "- ", *, is_numbered: bool = False) -> str:
    """The line, or the lines of a table, in which a quote stands."""
    first, *rows = quote.unit.text.split("\n") if quote.unit.kind is Kind.TABLE else [quote.unit.text]
    number = f"({quote.message + 1}) " if is_numbered else ""
    indent = "  " if quote.unit.intro else ""
    return "\n".join((f"{indent}{mark}{number}{first}", *(f"{indent}  {row}" for row in rows)))


def lines(kept: Iterable[Quote], mark: str = "- ") -> list[str]:
    """The lines of quotes in the order in which they were said, with the lines that introduce their lists."""
    forms: dict[str, list[Quote]] = defaultdict(list)
    for quote in kept:
        forms[_form(quote)].append(quote)
    placed: list[str] = []
    intro, said = (-1, ""), ""
    for same in forms.values():
        for quote in same:
            if quote.unit.intro and intro != (quote.message, quote.unit.intro) and said != quote.unit.intro:
                placed.append(f"{mark}{quote.unit.intro}")
            intro, said = (quote.message, quote.unit.intro), quote.unit.text
            placed += written(quote, mark, is_numbered=len(same) > 1).split("\n")
    return placed


def _form(quote: Quote) -> str:
    """What units have in common that differ in their values only; items of a list stay where they are."""
    if quote.unit.kind is not Kind.SENTENCE:
        return f"{quote.message} {quote.place}"
    return _VALUE.sub("0", quote.unit.text.casefold())
