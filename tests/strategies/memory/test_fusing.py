"""Fusing: hits by words and by meaning make one order, and the nearest of many distant vectors does not count."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strategies.core.messages import Role
from strategies.memory.ranking import MAX_NEAR, Entry, Hit, Index, fuse, outstanding

ENTRIES = [Entry(f"k{place}", Role.USER, f"text {place}", place) for place in range(400)]


def hit(place: int, score: float = 0.0) -> Hit:
    return Hit(ENTRIES[place], place, score)


def places(hits: list[Hit]) -> list[int]:
    return [each.position for each in hits]


def test_what_only_its_meaning_tells_is_found_too() -> None:
    assert places(fuse([hit(1, 9.0), hit(2, 3.0)], [hit(7, 4.0)])) == [7, 1, 2]


def test_what_both_find_comes_first() -> None:
    assert places(fuse([hit(1, 9.0), hit(2, 8.0)], [hit(3, 5.0), hit(2, 4.0)]))[0] == 2


def test_where_nothing_stands_out_words_rank_alone() -> None:
    worded = [hit(3, 9.0), hit(1, 4.5)]
    assert outstanding([(hit(place), 0.5) for place in range(20)]) == []
    assert [(each.position, each.score) for each in fuse(worded, [])] == [(3, 1.0), (1, 0.5)]


def test_what_is_far_closer_than_the_rest_stands_out() -> None:
    closeness = [(hit(place), 0.9 if place == 5 else 0.1) for place in range(20)]
    assert places(outstanding(closeness)) == [5]


def test_where_all_are_close_what_is_a_little_closer_stands_out() -> None:
    closeness = [(hit(place), 0.9 if place == 5 else 0.79 + 0.02 * (place % 2)) for place in range(20)]
    assert places(outstanding(closeness)) == [5]


def test_of_nothing_nothing_stands_out() -> None:
    assert outstanding([]) == []
    assert fuse([], []) == []


@given(st.lists(st.floats(-1, 1), max_size=400))
def test_what_stands_out_is_best_first_and_bounded(values: list[float]) -> None:
    found = outstanding([(hit(place), value) for place, value in enumerate(values)])
    assert len(found) <= MAX_NEAR
    assert all(one.score >= other.score for one, other in pairwise(found))


orders = st.lists(st.integers(0, 30), unique=True, max_size=20).map(
    lambda order: [hit(place, 20.0 - rank) for rank, place in enumerate(order)]
)


@given(orders, orders)
def test_nothing_is_lost_or_doubled_and_scores_are_shares(worded: list[Hit], near: list[Hit]) -> None:
    found = fuse(worded, near)
    assert sorted(places(found)) == sorted({*places(worded), *places(near)})
    assert all(0 < each.score <= 1 for each in found)


def test_what_is_visible_has_the_positions_of_hits() -> None:
    index = Index(ENTRIES[:6])
    allowed = {"k1", "k2", "k4"}
    assert [(each.entry.place, each.position) for each in index.visible(allowed)] == [(1, 0), (2, 1), (4, 2)]
    (found, *_) = index.search("4", allowed=allowed)
    assert found.position == 2
