"""What is kept of replies: little of each conversation, nothing that cannot be, the same for all replicas."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.knowledge.prices import (
    EVEN,
    MAX_BY_ONE,
    MAX_OBSERVATIONS,
    MIN_ERRORS,
    VERSION,
    Features,
    Observation,
    Samples,
    decoded,
    encoded,
    mean_error,
)

tokens = st.floats(40, 9_000).map(lambda each: round(each, 1))
features = st.builds(
    Features, st.sampled_from([0.0, 1.0]), st.just(0.0), st.just(3.0), tokens, media=st.just(2.0), media_tokens=tokens
)
observations = st.builds(
    Observation,
    features,
    st.integers(10, 90_000),
    st.sampled_from("abc"),
    st.integers(0, 99),
)
ledgers = st.lists(observations, max_size=12).map(lambda each: taught(Samples(), each))


def taught(ledger: Samples, given_: list[Observation]) -> Samples:
    for each in given_:
        ledger = ledger.with_observation(each)
    return ledger


def whole(own: float, counted: int, by: str = "", at: int = 0) -> Observation:
    return Observation(Features(requests=1, messages=4, words=own), counted, by, at)


@given(ledgers, ledgers, ledgers)
def test_what_replicas_have_learned_merges_to_the_same_in_any_order(a: Samples, b: Samples, c: Samples) -> None:
    assert a.merged(b) == b.merged(a)
    assert a.merged(b).merged(b) == a.merged(b)
    assert a.merged(a) == a
    assert len(a.merged(b).merged(c).wholes) <= MAX_OBSERVATIONS


@given(st.lists(observations, max_size=40), observations)
def test_what_is_taught_one_by_one_is_what_would_be_merged(many: list[Observation], one: Observation) -> None:
    ledger = taught(Samples(), many)
    alone = taught(Samples(), [one])
    assert ledger.with_observation(one) == ledger.merged(alone)


@given(ledgers, observations)
def test_what_is_known_already_teaches_nothing(ledger: Samples, one: Observation) -> None:
    once = ledger.with_observation(one)
    if one in (*once.wholes, *once.growths):
        assert once.with_observation(one) is once


@given(ledgers)
def test_a_ledger_comes_back_from_the_store_as_it_was(ledger: Samples) -> None:
    assert decoded(encoded(ledger.with_error(0.25, anchored=True))) == ledger.with_error(0.25, anchored=True)


def test_a_newer_version_is_no_knowledge_and_rubbish_is_told() -> None:
    newer = json.loads(encoded(Samples()))
    assert decoded(json.dumps({**newer, "v": VERSION + 1}).encode()) == Samples()
    for rubbish in (b"", b"[]", b"{}", b'{"v": 1}'):
        with pytest.raises((ValueError, LookupError, TypeError)):
            decoded(rubbish)


def test_what_an_earlier_version_has_stored_is_known() -> None:
    stored = {"v": 2, "wholes": [[600, "b", "tools", 7, 1, 1, 4, 500, 0, 0, 0, 0, 0]], "growths": [], "firsts": [0.5]}
    known = decoded(json.dumps({**stored, "anchored": []}).encode())
    assert known.wholes == (Observation(Features(1, 1, 4, 500), 600, "b", 7),)
    assert known.firsts == (0.5,)


def test_one_long_conversation_does_not_push_out_the_others() -> None:
    others = [whole(500, 600, by=str(each), at=each) for each in range(10)]
    ledger = taught(Samples(), [*others, *(whole(500 + each, 700, by="long", at=100 + each) for each in range(200))])
    assert sum(each.by == "long" for each in ledger.wholes) == MAX_BY_ONE
    assert {str(each) for each in range(10)} <= {each.by for each in ledger.wholes}


@pytest.mark.parametrize(("own", "counted"), [(2_000, 5), (2_000, 390), (100, 200_000)])
def test_a_count_that_cannot_be_of_this_text_teaches_nothing(own: float, counted: int) -> None:
    ledger = Samples()
    assert ledger.with_observation(whole(own, counted)) is ledger


def test_pictures_may_be_far_cheaper_than_we_count_them() -> None:
    taught_ = Samples().with_observation(Observation(Features(1, 0, 2, 100, media=1, media_tokens=40_000), 358))
    assert taught_.wholes


def test_what_truncated_replies_taught_is_dropped() -> None:
    ledger = taught(Samples(), [whole(5_000, 4_096, at=1), whole(900, 950, at=2), whole(9_000, 4_096, at=3)])
    assert [each.counted for each in ledger.without(4_096).wholes] == [950]
    assert ledger.without(2_048) is ledger


def test_a_growth_of_a_few_tokens_teaches_nothing() -> None:
    ledger = Samples()
    assert ledger.with_observation(Observation(Features(messages=1, words=9), 11)) is ledger


def test_what_is_hidden_in_each_request_is_found_by_requests_of_several_sizes() -> None:
    line = taught(Samples(), [whole(own, own + 800, by=str(own)) for own in (40, 90, 300, 1_500)]).fit()
    for own in (60, 2_000):
        assert abs(whole(own, 0).features.at(line) / (own + 800) - 1) < 0.02
    assert 700 < line.hidden < 900
    assert EVEN.hidden == 0


def test_what_is_hidden_is_told_to_another_way_of_counting() -> None:
    ledger = taught(Samples(), [whole(own, own + 800, by=str(own)) for own in (40, 90, 300)])
    hints = ledger.hint(ledger.fit())
    other = Samples().with_observation(Observation(Features(1, 1, 2, 1_000, outside=1_300), 4_500))
    told, untold = other.fit(hints).requests, other.fit().requests
    assert abs(told - 800) < abs(untold - 800)
    assert abs(told - 800) < 80


def test_the_error_is_told_once_there_are_enough_to_compare() -> None:
    ledger = Samples()
    for number in range(MIN_ERRORS):
        assert mean_error(ledger.firsts) is None
        ledger = ledger.with_error(0.1 * (number % 2), anchored=False)
    assert mean_error(ledger.firsts) == pytest.approx(0.05)
    assert mean_error(ledger.anchored) is None
