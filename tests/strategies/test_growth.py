"""What clients and models write costs in proportion to its length, whatever it is: no text can hold up the others."""

import re

import pytest

from tests.strategies.pathological import FORMS, READERS
from tests.support.growth import grows_too_fast


def slow(area: str, step: int) -> set[tuple[str, str]]:
    """The readers of an area, each with a form that it reads too slowly; of every `step`th form."""
    return {
        (name, made(8))
        for place, (name, read) in enumerate(READERS[area].items())
        for made in FORMS[place % step :: step]
        if grows_too_fast(read, made)
    }


@pytest.mark.parametrize("area", READERS)
def test_texts_of_many_forms_are_read_in_time(area: str) -> None:
    assert not slow(area, 4)


@pytest.mark.torture
@pytest.mark.parametrize("area", READERS)
def test_texts_of_any_form_are_read_in_time(area: str) -> None:
    assert not slow(area, 1)


def test_work_for_the_square_of_a_length_would_be_seen() -> None:
    assert grows_too_fast(re.compile(r"\[[^]]*\]").findall, lambda length: "[" * length)


def test_work_in_proportion_to_the_length_is_passed() -> None:
    assert not grows_too_fast(re.compile(r"\[").findall, lambda length: "[" * 100 * length)
