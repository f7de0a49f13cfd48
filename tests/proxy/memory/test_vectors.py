"""Vectors: how close texts are, and which vectors are kept."""

from __future__ import annotations

from random import Random

import pytest

from proxy.memory import meaning
from proxy.memory.meaning import COMPARED, FLOAT_BYTES, MAX_BYTES, MIN_BYTES, Meanings, SessionVectors, vector_of
from proxy.store.base import StoreKey
from strategies.core.messages import Role
from strategies.memory.ranking import Entry, Hit
from tests.proxy.asking.support import Clock
from tests.proxy.memory.test_meaning import TEXTS, Server, Totals, asker


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


def remembering() -> Meanings:
    return Meanings(Server().embed, Totals(), "embed-1", 0.1, Clock())


@pytest.mark.anyio
async def test_beyond_the_bound_the_session_that_was_not_used_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meaning, "MAX_BYTES", 2 * MIN_BYTES + 4 * FLOAT_BYTES)
    kept = remembering()
    one, two, three = (asker(name) for name in ("one", "two", "three"))
    for each in (one, two, one, three):
        await kept.learn(each, ["a"])
        kept.vectors(one.key)
    assert [kept.vectors(each.key).is_empty for each in (one, three, two)] == [False, False, True]


@pytest.mark.anyio
async def test_one_session_alone_gets_no_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meaning, "MAX_BYTES", MIN_BYTES)
    kept, server = remembering(), Server()
    kept.embed = server.embed
    await kept.learn(asker(), TEXTS)
    assert len(server.asked) == 1


def test_sessions_that_have_no_vectors_are_forgotten_too() -> None:
    kept, bound = remembering(), MAX_BYTES // MIN_BYTES
    first = kept.vectors(StoreKey("t", "first"))
    for number in range(bound - 1):
        kept.vectors(StoreKey("t", str(number)))
    assert kept.vectors(StoreKey("t", "first")) is first
    for number in range(bound):
        kept.vectors(StoreKey("t", f"later {number}"))
    assert kept.vectors(StoreKey("t", "first")) is not first
