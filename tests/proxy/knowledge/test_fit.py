"""What the fit finds, and what it never does, whatever an upstream counts."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from proxy.knowledge.prices import (
    EVEN,
    MAX_PRICES,
    MIN_PRICES,
    Features,
    Observation,
    fit_prices,
    non_latin_share,
    of_messages,
)
from strategies.core.messages import Message, Reader, Role, dump, literal
from strategies.dialects.chat import CHAT
from tests.support.transcripts import WORDS

TRUE = Features(requests=900, offers=120, messages=2, words=1.2, code=0.9, non_latin=2.5, outside=1.8)
amounts = st.floats(0, 50_000)


def request(dice: random.Random, *, offers: bool) -> Features:
    words, code, wide = (dice.uniform(0, 3_000) for _ in range(3))
    return Features(1, float(offers), dice.randint(1, 30), words, code, wide, dice.uniform(100, 2_000) if offers else 3)


def counted(features: Features, prices: Features = TRUE) -> Observation:
    return Observation(features, round(features.at(prices)))


def some(number: int, seed: int = 1) -> list[Observation]:
    dice = random.Random(seed)
    return [counted(request(dice, offers=each % 2 == 0)) for each in range(number)]


def error(prices: Features, seed: int = 2) -> float:
    dice = random.Random(seed)
    asked = [request(dice, offers=each % 2 == 0) for each in range(50)]
    return sum(abs(each.at(prices) / each.at(TRUE) - 1) for each in asked) / len(asked)


def test_ten_requests_of_all_kinds_show_what_each_kind_costs() -> None:
    assert sum(error(fit_prices(some(10, seed))) for seed in (1, 5, 6)) / 3 < 0.04
    assert error(fit_prices(some(40))) < 0.005


def test_replies_of_our_own_tokenizer_leave_our_count_as_it_is() -> None:
    dice = random.Random(3)
    own = [counted(request(dice, offers=True), EVEN) for _ in range(20)]
    assert abs(error(fit_prices(own)) - error(EVEN)) < 0.01


def test_without_an_observation_a_token_is_a_token() -> None:
    assert fit_prices([]) == EVEN


def test_a_few_wild_counts_change_little() -> None:
    wild = [each._replace(counted=each.counted * 5) for each in some(5, seed=4)]
    assert error(fit_prices([*some(40), *wild])) < 0.05


@given(st.lists(st.builds(Observation, st.builds(Features, *[amounts] * 9), st.integers(0, 10**7)), max_size=6))
def test_prices_stay_within_their_bounds_whatever_was_counted(observations: list[Observation]) -> None:
    for price, low, high in zip(fit_prices(observations), MIN_PRICES, MAX_PRICES, strict=True):
        assert low <= price <= high


def test_a_price_at_its_bound_is_made_up_for_by_the_others() -> None:
    """Nothing can be taken off each request, so it is the words that are cheaper."""
    cheap = fit_prices([Observation(Features(requests=1, words=own), round(0.6 * own)) for own in (800, 1_000, 1_200)])
    assert abs(cheap.words - 0.6) < 0.02


def picture(*, told: str = "See this.") -> Message:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9_000}}
    body = {"role": "user", "content": [{"type": "text", "text": told}, part]}
    return Reader().read(dump(body), body, 1_100 + len(told) // 4, CHAT)


def test_pictures_are_counted_apart_from_the_text_beside_them() -> None:
    features = of_messages([picture(), picture(told="words " * 200)])
    assert features.media == 2
    assert abs(features.media_tokens - 2 * 1_100) < 20
    assert abs(features.words - 300) < 20
    assert of_messages([literal({"role": "user", "content": '"image_url"'}, WORDS, Role.USER)]).media == 0


def test_pictures_of_one_price_are_found_whatever_their_size_costs_by_our_count() -> None:
    seen = [
        Observation(Features(1, 0, 4, 300, media=n, media_tokens=n * own), 300 + 258 * n)
        for n, own in ((1, 1_105), (2, 600), (3, 900), (5, 255))
    ]
    prices = fit_prices(seen)
    asked = Features(1, 0, 4, 500, media=8, media_tokens=8 * 1_105)
    assert abs(asked.at(prices) / (500 + 8 * 258) - 1) < 0.1


def test_letters_that_are_not_latin_are_found_written_out_or_escaped() -> None:
    assert non_latin_share(b'{"role":"user","content":"plain words"}') == 0
    chinese = "今天天气怎么样" * 40
    assert non_latin_share(f'{{"role":"user","content":"{chinese}"}}'.encode()) > 0.9
    assert non_latin_share(f'{{"content":"{chinese}"}}'.encode("ascii", "backslashreplace")) > 0.9
    assert 0.2 < non_latin_share(("half of it " * 20 + "今天天气" * 20).encode()) < 0.8


def test_each_message_of_ours_is_looked_at_itself_though_none_has_a_digest() -> None:
    bodies = [{"role": "user", "content": text} for text in ("plain words", "今天天气怎么样" * 40)]
    plain, chinese = (of_messages([literal(body, WORDS, Role.USER)]) for body in bodies)
    assert plain.non_latin == 0
    assert chinese.non_latin > 0.9 * chinese.own


@given(st.binary(max_size=4_000))
def test_any_bytes_have_a_share(data: bytes) -> None:
    assert 0 <= non_latin_share(data) <= 1
