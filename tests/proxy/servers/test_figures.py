"""Offset, slope and price of a picture: what prompts teach, and how little one prompt can do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.servers.figures import (
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


def test_odd_prompts_teach_nothing() -> None:
    for lesson in [prompt(2_000, 5_500), prompt(2_000, 1_200), growth(900, 2_500), growth(900, 500)]:
        assert LEARNED.taught_by(lesson) == LEARNED._replace(line=Votes(20, 1))
    assert taught(OWN, prompt(1_653, 27_000)) == OWN


@given(lessons)
def test_the_first_prompts_are_some_of_many_and_set_nothing_implausible(lesson: Lesson) -> None:
    after = OWN.taught_by(lesson)
    for text in (lesson.text, 600, 6_000, 60_000):
        assert abs(expected(after, text) - text) <= 1.21 * STEP * text + 1  # the whole step is that of `lesson.text`
    first = OWN.taught_by(lesson)
    assert MIN_SLOPE <= first.slope <= MAX_SLOPE
    assert 0 <= first.offset <= MAX_FIRST_OFFSET


def test_prompts_lead_to_what_they_show() -> None:
    chinese = taught(OWN, *[prompt(9_000, 23_000)] * 20)
    assert expected(chinese, 9_000) == pytest.approx(23_000, rel=0.01)
    assert taught(OWN, *[prompt(2_000, 7_800)] * 3, *[prompt(3_000, 3_200)] * 3).slope < 1.1
    texts = [200, 4_000, 900, 12_000, 400, 2_500] * 12
    figures = taught(OWN, *[prompt(text, 300 + 1.3 * text) for text in texts])
    for text in (300, 3_000, 30_000):
        assert expected(figures, text) == pytest.approx(300 + 1.3 * text, rel=0.02)


def test_lessons_of_many_move_when_more_contradict_them() -> None:
    odd = [prompt(3_000, 12_000)] * (MAX_ODD + 1)
    assert taught(LEARNED, *odd[1:], prompt(3_000, 3_800)).slope == LEARNED.slope
    assert taught(LEARNED, *odd).slope == LEARNED.slope
    assert taught(LEARNED, *odd, odd[0]).slope > LEARNED.slope
    assert taught(LEARNED, *odd, *odd, *odd, *odd).slope > 3


@given(lessons, st.integers(-90_000, 90_000))
def test_a_conversations_offset_is_part_of_the_same_step(lesson: Lesson, shown: int) -> None:
    for before in (OWN, LEARNED):
        after = before.taught_by(lesson).with_offset(shown, before)
        for text in (600, 6_000, 60_000):
            assert abs(expected(after, text) - expected(before, text)) <= STEP * expected(before, text) + 1


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


def test_rubbish_is_no_figures() -> None:
    for rubbish in [b"", b"[]", b"{}", b'{"v":1}', b"[0,90,[1,0],null,[0,0],0,0]", b'["x",1]']:
        with pytest.raises((ValueError, TypeError)):
            decoded(rubbish)
