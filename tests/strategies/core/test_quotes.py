"""Quotes: which units are kept, rarest first, and how they stand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.findings import said_in
from strategies.core.quotes import Quote, chosen, is_quotable, lines, quotes
from strategies.core.rarity import Rarity, terms_of
from tests.strategies.test_invariants import STABLE
from tests.support.transcripts import WORDS, message, user

ROOMY = 10_000


def ordered(*texts: str) -> list[Quote]:
    """The units of what a user says, best first."""
    rarity = Rarity([terms_of(text) for text in texts])
    return quotes(((place, said_in(message(user(text)))) for place, text in enumerate(texts)), rarity)


def kept(room: int, *texts: str, most: int = ROOMY) -> list[str]:
    return lines(chosen(ordered(*texts), room, most, WORDS)[0])


TALK = ["Well, go on with it then, please."] * 10
RULE = "Never open the cellar before noon."


def test_the_rarest_comes_first_and_of_equals_the_newest() -> None:
    found = ordered(RULE, *TALK, "Paint every window frame dark green.")
    assert [quote.unit.text for quote in found[:3]] == ["Paint every window frame dark green.", RULE, TALK[0]]


def test_of_equals_what_has_a_name_comes_first() -> None:
    found = ordered("We opened cellar web-01 today.", "Paint every window frame dark.", *TALK)
    assert found[0].unit.text == "We opened cellar web-01 today."


def test_what_was_kept_stands_in_the_order_in_which_it_was_said() -> None:
    assert kept(ROOMY, RULE, "We go to the lake.", "Paint all frames green.") == [
        f"- {RULE}",
        "- We go to the lake.",
        "- Paint all frames green.",
    ]


def test_where_not_all_fits_small_talk_goes() -> None:
    assert kept(12, *TALK, RULE, *TALK) == [f"- {RULE}"]


def test_equal_forms_with_other_values_stand_together_with_the_numbers_of_their_messages() -> None:
    assert kept(ROOMY, "Take one pill at 8:00.", "We go to the lake.", "Take one pill at 20:00.") == [
        "- (1) Take one pill at 8:00.",
        "- (3) Take one pill at 20:00.",
        "- We go to the lake.",
    ]


def test_equal_words_stand_once_where_they_were_said_last() -> None:
    (quote,) = (
        each for each in ordered(RULE, "We go to the lake.", RULE) if each.unit.text == RULE and not each.fills_only
    )
    assert quote.message == 2


def test_a_paragraph_has_no_holes() -> None:
    said = "Never open the cellar. Yes. Paint every frame green."
    assert kept(ROOMY, *TALK, said) == [f"- {TALK[0]}", "- Never open the cellar.", "- Paint every frame green."]
    paragraph = "Never open cellar zebra-1. Well, go on with it then, please. Paint quagga-2 green."
    assert [line for line in kept(ROOMY, paragraph, *TALK) if "zebra" in line or "quagga" in line]
    short = kept(14, paragraph, *TALK)
    assert len(short) == 1


def test_items_stand_below_the_line_that_introduces_them() -> None:
    assert kept(ROOMY, "Two rules:\n- Keep the tests green.\n- Never push to main.") == [
        "- Two rules:",
        "  - Keep the tests green.",
        "  - Never push to main.",
    ]


def test_rows_stand_under_their_tables_header() -> None:
    assert kept(ROOMY, "| name | size |\n|---|---|\n| web-01 | 20 MB |") == [
        "- | name | size |",
        "  | web-01 | 20 MB |",
    ]


def test_code_and_what_is_too_long_are_not_quoted() -> None:
    assert kept(ROOMY, "```\nnever = open(the_cellar)\n```") == []
    assert kept(ROOMY, f"Never open {'the old ' * 60}cellar.", RULE, most=40) == [f"- {RULE}"]
    (quote,) = ordered(RULE)
    assert is_quotable(quote, 10, WORDS)
    assert not is_quotable(quote, 3, WORDS)


def test_greetings_take_no_room() -> None:
    assert kept(ROOMY, "Thanks a lot!", "Hello there,", "Many thanks", RULE)[-1] == f"- {RULE}"
    assert kept(ROOMY, "Thanks!") == []


SPOKEN = st.lists(
    st.sampled_from(
        [
            *("Take one pill at 8:00.", "Take one pill at 9:30.", "Rules:\n- Keep it green.\n- Never push 3 times."),
            *("Thanks! Go on with it.", "| a name | b |\n| c | d 1 |", RULE),
            *("Now this. And that. Or not 7.", "Steps:\n1. Do it"),
        ]
    ),
    max_size=40,
)  # fmt: skip


@pytest.mark.parametrize("most", [12, ROOMY])
@given(texts=SPOKEN, room=st.integers(0, 300))
@STABLE
def test_quotes_keep_within_their_room(most: int, texts: list[str], room: int) -> None:
    found, left = chosen(ordered(*texts), room, most, WORDS)
    assert 0 <= left <= room
    assert WORDS.text("\n".join(lines(found))) <= room - left
