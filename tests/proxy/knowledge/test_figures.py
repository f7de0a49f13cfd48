"""Offset, slope and price of a picture: what prompts teach, and how little one prompt can do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.knowledge.figures import (
    MAX_FIRST_OFFSET,
    MAX_ODD,
    MAX_SLOPE,
    MIN_SLOPE,
    OWN,
    STEP,
    Figures,
    Lesson,
    Votes,
    decoded,
    encoded,
)
from strategies.core.messages import NO_PICTURES, Pictures

LEARNED = OWN._replace(offset=200.0, slope=1.2, line=Votes(20))
lessons = st.builds(Lesson, st.integers(0, 90_000), st.just(NO_PICTURES), st.integers(1, 400_000), st.booleans())


def prompt(text: int, counted: float, *, pictures: Pictures = NO_PICTURES) -> Lesson:
    return Lesson(text, pictures, round(counted), is_whole=True)


def growth(text: int, counted: float, *, pictures: Pictures = NO_PICTURES) -> Lesson:
    return Lesson(text, pictures, round(counted), is_whole=False)


def taught(figures: Figures, *all_of: Lesson) -> Figures:
    for lesson in all_of:
        figures = figures.taught_by(lesson)
    return figures


def expected(figures: Figures, text: int) -> float:
    return figures.expected(text, NO_PICTURES, is_whole=True)


@given(lessons)
def test_one_prompt_moves_what_is_expected_by_at_most_a_twentieth(lesson: Lesson) -> None:
    after = LEARNED.taught_by(lesson)
    if after.line.taught > 1:  # not begun anew
        for text in (lesson.text, 600, 6_000, 60_000):
            assert abs(expected(after, text) - expected(LEARNED, text)) <= 1.1 * STEP * expected(LEARNED, text) + 1
        assert abs(after.slope - LEARNED.slope) <= STEP * LEARNED.slope + 1e-6


@pytest.mark.parametrize("lesson", [prompt(2_000, 5_500), prompt(2_000, 1_200), growth(900, 2_500), growth(900, 500)])
def test_a_prompt_off_by_more_than_a_factor_of_two_teaches_nothing(lesson: Lesson) -> None:
    assert LEARNED.taught_by(lesson) == LEARNED._replace(line=Votes(20, 1))


def test_a_first_prompt_sets_the_figures_at_once() -> None:
    assert expected(taught(OWN, prompt(3_000, 3_900)), 3_000) == pytest.approx(3_900, rel=0.001)
    assert taught(OWN, prompt(100, 780)).offset == pytest.approx(680, abs=25)  # a short one shows what is hidden
    assert taught(OWN, prompt(9_000, 23_000)).slope == pytest.approx(2.55, abs=0.02)  # a long one shows the slope
    assert taught(OWN, growth(5_000, 13_000)).slope == pytest.approx(2.6, abs=0.03)


@given(lessons)
def test_a_first_prompt_sets_nothing_that_is_not_plausible(lesson: Lesson) -> None:
    first = OWN.taught_by(lesson)
    assert MIN_SLOPE <= first.slope <= MAX_SLOPE
    assert 0 <= first.offset <= MAX_FIRST_OFFSET


def test_reasoning_that_was_not_counted_teaches_nothing() -> None:
    assert taught(OWN, prompt(1_653, 27_000)) == OWN


def test_a_strange_first_prompt_is_outvoted_by_the_next_two() -> None:
    strange = taught(OWN, prompt(2_000, 7_800))
    assert strange.slope > 3
    assert taught(strange, prompt(3_000, 3_200), prompt(3_000, 3_200)).slope < 1.1


def test_what_many_have_taught_goes_when_still_more_in_a_row_contradict_it() -> None:
    odd = [prompt(3_000, 12_000)] * MAX_ODD
    assert taught(LEARNED, *odd).slope == LEARNED.slope
    assert taught(LEARNED, *odd, prompt(3_000, 3_800)).slope == LEARNED.slope
    assert taught(LEARNED, *odd, odd[0]).slope > 3


def test_figures_come_to_what_the_upstream_counts() -> None:
    texts = [200, 4_000, 900, 12_000, 400, 2_500] * 12
    figures = taught(OWN, *[prompt(text, 300 + 1.3 * text) for text in texts])
    for text in (300, 3_000, 30_000):
        assert expected(figures, text) == pytest.approx(300 + 1.3 * text, rel=0.02)


def test_a_conversation_shows_an_offset_in_small_steps() -> None:
    moved = LEARNED.with_offset(5_000)
    assert 0 < moved.offset - LEARNED.offset <= STEP * expected(LEARNED, 600)
    assert OWN.with_offset(5_000) == OWN


def test_a_picture_has_one_price_once_the_published_one_is_wrong() -> None:
    one = Pictures(1, 1_105)
    assert taught(OWN, growth(40, 1_150, pictures=one)).picture is None
    flat = taught(OWN, growth(40, 298, pictures=one))
    assert flat.picture == 258
    assert flat.cost(Pictures(3, 9)) == 3 * 258
    assert taught(flat, growth(40, 310, pictures=one)).picture == 270
    assert taught(flat, growth(40, 2_000, pictures=one)).picture == 258
    assert taught(flat, *[growth(40, 2_000, pictures=one)] * 4).picture is None
    assert taught(flat, growth(2_000, 2_700, pictures=one)).picture == 258  # too much text to tell
    sure = growth(1_000, 1_080 + 270, pictures=one)._replace(slope=1.08, is_sure=True)
    assert taught(flat, sure).picture == 270


@given(st.lists(lessons, max_size=9), st.floats(0, 1))
def test_figures_come_back_from_the_store_as_they_were(several: list[Lesson], error: float) -> None:
    figures = taught(OWN, *several).with_error(error, is_first=True)
    assert decoded(encoded(figures)) == figures


@pytest.mark.parametrize("rubbish", [b"", b"[]", b"{}", b'{"v":1}', b"[0,90,[1,0],null,[0,0],0,0]", b'["x",1]'])
def test_rubbish_is_no_figures(rubbish: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        decoded(rubbish)
