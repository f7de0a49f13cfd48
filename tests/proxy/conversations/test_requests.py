"""Request records: they are read as they were packed, and say what a request meant."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.bodies.measure import Precision
from proxy.conversations.requests import SIZE, RequestRecord, amounts, unpacked
from proxy.conversations.totals import figures, spent_and_saved
from proxy.reasons import Action, Trigger
from strategies.core.economics import Prices, PriceStep
from tests.proxy.remembered import record

COUNT = st.integers(0, 2**32 - 1)
PRICES = Prices(input=2.0, cached_input=0.5, cache_write=2.0, output=10.0)
MODELS = ("gpt-4o", "qwen3-4b")


@given(
    st.builds(
        record,
        at=st.integers(0, 2**42).map(lambda ms: ms / 1000),
        branch=st.sampled_from(["main", "b2", "b65000"]),
        action=st.sampled_from(Action),
        trigger=st.sampled_from(Trigger),
        condensation=st.sampled_from(["", "c0123456789abcdef", "cffffffffffffffff"]),
        precision=st.sampled_from(Precision),
        status=st.integers(0, 599),
        model=st.sampled_from(MODELS),
        window=st.none() | st.integers(256, 2**31),
        fits=st.booleans(),
        number=st.integers(1, 10**9),
        **dict.fromkeys(
            ("before", "after", "milliseconds", "prompt", "cached", "reply", "own", "reread", "cost", "first_byte"),
            COUNT,
        ),
    )
)
def test_a_record_is_read_as_it_was_packed(one: RequestRecord) -> None:
    item = one.packed(MODELS)
    assert len(item) == SIZE == 68
    assert unpacked(one.number, item, MODELS) == one


def test_a_model_without_a_place_is_another_and_an_item_of_another_version_is_left_out() -> None:
    item = record(model="unknown").packed(MODELS)
    assert unpacked(1, item, MODELS) == record(model="other", number=1)
    assert unpacked(1, item + b"more", MODELS) is None


@pytest.mark.parametrize(
    ("facts", "is_rescued", "saved"),
    [
        ({"before": 900, "after": 400}, False, 500),
        ({"before": 900, "after": 400, "fits": False}, True, 0),
        ({"before": 900, "after": 400, "fits": False, "status": 400}, False, 0),
        ({"before": 900, "after": 900, "fits": False}, False, 0),
        ({"before": 900, "after": 950}, False, -50),
    ],
    ids=["fitted", "did not fit", "was refused", "went as it came", "memory added more"],
)
def test_only_what_could_have_been_spent_is_saved(facts: dict[str, Any], is_rescued: bool, saved: int) -> None:
    one = record(**facts)
    assert (one.is_rescued, one.saved) == (is_rescued, saved)


def test_saved_tokens_are_worth_what_the_cache_would_have_cost() -> None:
    one = record(before=3_000_000, after=1_000_000, reread=1_000_000, prompt=1_000_000, cost=7)
    found = amounts(one, PRICES)
    assert (found["saved_cost"], found["reread_cost"], found["cost"]) == (1_000_000, 1_500_000, 7)
    assert "saved_cost" not in amounts(record(before=9, after=1), None)
    # A server that counts half as many tokens as we do bills half of what we count as saved.
    assert amounts(one, PRICES, 0.5)["saved_cost"] == 500_000


def test_a_prompt_that_is_kept_below_a_price_step_saves_what_the_step_costs() -> None:
    prices = replace(PRICES, step=PriceStep(above=1_500_000, input=2.0, output=1.5))
    found = amounts(record(before=2_000_000, after=1_000_000, prompt=1_000_000, cached=900_000, reply=10_000), prices)
    paid, direct = 0.1 * 2 + 0.9 * 0.5 + 0.1, 2 * (0.1 * 2 + 1.9 * 0.5) + 1.5 * 0.1
    assert found["saved_cost"] == round((direct - paid) * 1_000_000)


FITS = {"requests": 3, "cost": 9_000, "saved_tokens": 500, "saved_cost": 700}
RESCUED = {"rescued": 2, "reread_cost": 250, "rescue_reread_cost": 200}
OWN = {"own_cost": 900, "own_tokens": 30, "rescue_own_tokens": 20}


@pytest.mark.parametrize(
    ("sums", "told"),
    [
        (FITS, "USD 0.0090 spent; condensing saved USD 0.0007 net"),
        (FITS | RESCUED, "USD 0.0090 spent; condensing saved USD 0.0006 net; rescuing cost USD 0.0002"),
        (FITS | RESCUED | OWN, "USD 0.0090 spent; condensing saved USD 0.0003 net; rescuing cost USD 0.0008"),
        (FITS | OWN, "USD 0.0090 spent; condensing saved USD 0.0004 net; rescuing cost USD 0.0006"),
        ({"cost": 9, "reread_cost": 80}, "USD 0.0000 spent; condensing cost USD 0.0001 more than it saved"),
        ({"cost": 9, "unreported": 1}, "about USD 0.0000 spent; condensing saved nothing and cost nothing"),
    ],
    ids=["saved", "rescued too", "with own calls", "own calls only", "lost", "nothing"],
)
def test_what_rescuing_cost_is_taken_from_no_saving(sums: dict[str, int], told: str) -> None:
    assert spent_and_saved(sums, "USD") == told
    assert dict(figures(sums, "USD"))["money"] == told
