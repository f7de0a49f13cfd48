"""Vectors: how close texts are, and which vectors are kept."""

from __future__ import annotations

from random import Random

import pytest

from proxy.memory.meaning import COMPARED, FLOAT_BYTES, MAX_SESSIONS, SessionVectors, Vectors, vector_of
from proxy.store.base import StoreKey
from strategies.core.messages import Role
from strategies.memory.ranking import Entry, Hit


def hits(*texts: str) -> list[Hit]:
    return [Hit(Entry(f"k{place}", Role.USER, text, place), place, 0.0) for place, text in enumerate(texts)]


def test_closeness_is_the_cosine_whatever_the_length() -> None:
    known = SessionVectors()
    known.put(["along", "across", "against"], [[3.0, 0.0], [0.0, 0.5], [-2.0, 0.0]])
    found = known.closeness(vector_of([10.0, 0.0]), hits("along", "across", "against", "unknown"))
    assert [value for _, value in found] == pytest.approx([1.0, 0.0, -1.0])


def test_vectors_of_another_model_are_left_out() -> None:
    known = SessionVectors()
    known.put(["short"], [[1.0, 0.0]])
    assert known.closeness(vector_of([1.0, 0.0, 0.0]), hits("short")) == []


def test_a_vector_without_direction_is_close_to_nothing() -> None:
    known = SessionVectors()
    known.put(["nothing"], [[0.0, 0.0]])
    assert [value for _, value in known.closeness(vector_of([1.0, 1.0]), hits("nothing"))] == [0.0]


def test_of_many_the_closest_is_among_those_that_are_compared() -> None:
    chosen, known = Random(5), SessionVectors()
    texts = [f"text {each}" for each in range(5 * COMPARED)]
    vectors = [[chosen.gauss(0, 1) for _ in range(64)] for _ in texts]
    known.put(texts, vectors)
    asked = [value + chosen.gauss(0, 0.3) for value in vectors[123]]
    found = known.closeness(vector_of(asked), hits(*texts))
    assert len(found) == COMPARED
    assert max(found, key=lambda each: each[1])[0].entry.text == "text 123"


def test_a_text_is_asked_for_once() -> None:
    known = SessionVectors()
    known.put(["a", "\ud800"], [[1.0], [1.0]])
    assert known.unknown(["b", "a", "b", "\ud800", "c"]) == ["b", "c"]


def test_beyond_the_bound_the_session_that_was_not_used_for_longest_is_forgotten() -> None:
    kept = Vectors(most_bytes=4 * FLOAT_BYTES)
    one, two, three = (StoreKey("t", name) for name in ("one", "two", "three"))
    for key in (one, two):
        kept.of(key).put(["a"], [[1.0, 0.0]])
    assert kept.make_room()
    kept.of(one)
    kept.of(three).put(["a"], [[1.0, 0.0]])
    assert kept.make_room()
    assert [len(kept.of(key)) for key in (one, two, three)] == [1, 0, 1]


def test_one_session_alone_gets_no_more_than_there_is() -> None:
    kept = Vectors(most_bytes=4 * FLOAT_BYTES)
    kept.of(StoreKey("t", "one")).put(["a", "b", "c"], [[1.0, 0.0]] * 3)
    assert not kept.make_room()


def test_sessions_that_have_no_vectors_are_forgotten_too() -> None:
    kept = Vectors()
    first = kept.of(StoreKey("t", "first"))
    for number in range(MAX_SESSIONS - 1):
        kept.of(StoreKey("t", str(number)))
    assert kept.of(StoreKey("t", "first")) is first
    for number in range(MAX_SESSIONS):
        kept.of(StoreKey("t", f"later {number}"))
    assert kept.of(StoreKey("t", "first")) is not first
