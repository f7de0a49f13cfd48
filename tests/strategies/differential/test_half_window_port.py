"""`half-window` against its document: which rounds it collects, where it splits, and what a view then shows."""

from __future__ import annotations

import random
import re
from itertools import count
from typing import NamedTuple

import pytest

from strategies.core.budget import Budget
from strategies.core.errors import Declined, NothingToSummarize
from strategies.core.view import View
from strategies.half_window import HalfWindowOptions, collect_rounds, decide
from tests.strategies.differential import SEEDS, examples, ports
from tests.strategies.driving import condensed, later, texts
from tests.support.transcripts import Body, assistant, step, transcript_of, user, view_of, words

pytestmark = pytest.mark.hypothesis

ROOMY = Budget.of(1_000_000).with_goal(900_000)


class Shape(NamedTuple):
    """A whole conversation: how many rounds its turns have, and whether each turn ends with a text, as most do."""

    turns: list[int]
    ends: list[bool]

    @classmethod
    def drawn(cls, rng: random.Random) -> Shape:
        turns = [rng.randint(1, 6) for _ in range(rng.randint(1, 8))]
        return cls(turns, [rng.random() < 0.5 for _ in turns])

    def until(self, turn: int, rounds: int) -> list[Body]:
        """The messages up to a round of a turn, which is then the active one. Every round says its number."""
        bodies: list[Body] = []
        numbers = count()
        for at, all_rounds in enumerate(self.turns[: turn + 1]):
            bodies.append(user(f"Turn {at}: {words(30)}"))
            for made in range(all_rounds if at < turn else rounds):
                number = next(numbers)
                said = f"round-{number}- {words(160)}"
                is_text = self.ends[at] and made == all_rounds - 1
                one = [assistant(said)] if is_text else step(number, 1)
                bodies += one if is_text else [one[0], {**one[1], "content": said}]
        return bodies


def drawn_place(shape: Shape, rng: random.Random, at_least: int = 0) -> tuple[int, int]:
    """A turn of the conversation, and how many rounds of it have been made."""
    turn = rng.randint(at_least, len(shape.turns) - 1)
    return turn, rng.randint(0, shape.turns[turn])


def rounds_shown(view: View) -> list[int]:
    return [int(number) for number in re.findall(r"round-(\d+)-", "\n".join(texts(view)))]


@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_are_collected_and_split_as_the_document_does(seed: int) -> None:
    rng = random.Random(seed)
    for _ in examples(60):
        shape = Shape.drawn(rng)
        turn, active = drawn_place(shape, rng)
        overlap, least = rng.choice([(1, 4), (1, 4), (0, 4), (2, 6), (1, 2)])
        case = (shape.turns[:turn], active, overlap, least)
        view = view_of(shape.until(turn, active))
        cursors = collect_rounds(view)
        expected = ports.collect_rounds(shape.turns[:turn], active)
        assert [(cursor.turn, cursor.round) for cursor in cursors] == expected, case
        split = ports.half_window(expected, overlap, least, has_summary=False)
        options = HalfWindowOptions(min_rounds=least, min_overlap=overlap)
        if split is None:
            with pytest.raises(NothingToSummarize):
                decide(view, cursors, options)
            continue
        decision = decide(view, cursors, options)
        assert (decision.level, decision.first_kept) == (split.level, split.first), case
        if split.level == 0:
            assert decision.boundary == split.boundary, case


@pytest.mark.parametrize("seed", SEEDS)
def test_an_exact_split_shows_the_rounds_that_the_document_keeps_twice_in_a_row(seed: int) -> None:
    rng = random.Random(seed)
    for _ in examples(25):
        shape = Shape.drawn(rng)
        turn, active = drawn_place(shape, rng)
        view, summarized = view_of(shape.until(turn, active)), 0
        for has_summary in (False, True):
            case = (shape.turns[:turn], active, summarized)
            cursors = ports.collect_rounds(shape.turns[:turn], active, summarized)
            split = ports.half_window(cursors, 1, 4, has_summary=has_summary)
            if split is None or split.level == 2:
                with pytest.raises(Declined if split else NothingToSummarize):
                    condensed("half-window", view, ROOMY, exact=True)
                break
            view = condensed("half-window", view, ROOMY, exact=True)
            summarized += split.first
            assert rounds_shown(view) == [*range(summarized, sum(shape.turns[:turn]) + active)], case
            turn, active = max((turn, active), drawn_place(shape, rng, turn))
            view = later(view, transcript_of(shape.until(turn, active)))
