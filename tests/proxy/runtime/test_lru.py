"""A bounded cache drops the least recently used value."""

from proxy.runtime.lru import Lru


def filled(most: int, *keys: str) -> Lru[str, str]:
    kept: Lru[str, str] = Lru(most)
    for key in keys:
        kept.put(key, key.upper())
    return kept


def test_the_least_used_values_go_first_and_false_ones_stay() -> None:
    kept = filled(2, "a", "b", "c")
    assert dict(kept.items()) == {"b": "B", "c": "C"}
    assert kept.get("a") is None
    kept = filled(3, "a", "b", "c")
    kept.put("a", "again")
    assert kept.use("b") == "B"
    kept.get("c")
    kept.put("d", "D")
    assert dict(kept.items()) == {"a": "again", "b": "B", "d": "D"}


def test_a_value_that_is_false_is_kept_as_well_as_any_other() -> None:
    kept: Lru[str, int] = Lru(1)
    kept.put("a", 0)
    assert kept.use("a") == 0


def test_values_are_bounded_by_size_each_counted_once() -> None:
    kept: Lru[str, str] = Lru(10)
    kept.put("a", "A", 4)
    kept.put("b", "B", 4)
    assert kept.use("a") == "A"
    kept.put("c", "C", 4)
    assert [kept.use(key) for key in "abc"] == ["A", None, "C"]
    kept.put("large", "L", 11)
    assert [kept.use(key) for key in ("a", "c", "large")] == [None, None, "L"]
    kept = Lru(10)
    kept.put("a", "A", 3)
    for _ in range(5):
        kept.put("b", "B", 7)
    assert [kept.use(key) for key in "ab"] == ["A", "B"]
