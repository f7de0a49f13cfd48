"""Rarity: what is said in few messages of a conversation says most, in any language."""

import pytest

from strategies.core.rarity import HIGHEST, Rarity, terms_of


def scores(messages: list[str], *asked: str) -> list[int]:
    rarity = Rarity([terms_of(text) for text in messages])
    return [rarity.score(terms_of(text)) for text in asked]


TALK = ["well go on with the parser then please"] * 30


@pytest.mark.parametrize(
    "rule",
    [
        "Never open the cellar before noon.", "Öffne niemals den Keller vor Mittag.", "Jamás abras la bodega.",
        "絶対に地下室を開けないでください。", "不要在中午之前打开地下室。", "정오 전에는 절대 지하실을 열지 마세요.",
        "Никогда не открывай подвал.",
    ],
)  # fmt: skip
def test_a_rule_that_is_said_once_outranks_what_is_said_all_the_time(rule: str) -> None:
    rare, common = scores([*TALK, rule], rule, TALK[0])
    assert rare > 5 * common
    assert rare < HIGHEST


def test_two_rare_words_may_be_chance() -> None:
    few, more = scores([*TALK, "zebra quagga"], "zebra quagga", "zebra quagga okapi tapir")
    assert few < more


@pytest.mark.parametrize("text", ["4711 12 99", "!!! ---", "", "a" * 41, "x y z"])
def test_digits_signs_single_letters_and_hashes_score_nothing(text: str) -> None:
    assert scores(TALK, text) == [0]


def test_terms_are_numbers_in_order_and_each_counts_once() -> None:
    terms = terms_of("Bees like bees, and bees like figs.")
    assert list(terms) == sorted(set(terms))
    assert len(terms) == 4


def test_a_text_that_cannot_be_written_has_terms_too() -> None:
    assert len(terms_of("a lone \ud800 surrogate")) == 2


@pytest.mark.parametrize(
    "text", ["Well-known THINGS of\tthe_Parser, v2x\x00y", "a" * 41 + " b " + "C" * 40, "x", "\x1c\x7f"]
)
def test_a_text_has_the_same_terms_whatever_signs_stand_beside_it(text: str) -> None:
    assert terms_of(text) == terms_of(f"{text} …")
