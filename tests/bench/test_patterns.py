"""What patterns cost: pumps are made of a pattern's own words, and all patterns of the product are found."""

import re

from bench.patterns import found, patterns_in, pumps, row


def test_pumps_are_the_words_of_a_pattern() -> None:
    assert pumps(re.compile(r"(?:from|to) +[a-z]+:\d"))[:3] == ["from", "to", ":1"]
    assert "to from" in pumps(re.compile("(?:from|to)"))
    assert pumps(re.compile(rb"/Type\s*/Page(?![a-zA-Z])"))[:2] == ["/Type", "/Page"]


def test_a_row_has_the_dearest_pump_and_its_ratio_to_prose() -> None:
    found_row = row("far", re.compile("<a>.*</a>", re.DOTALL), 400)
    assert found_row["pattern"] == "far"
    assert found_row["times prose"] > 0
    assert found_row["pump"].startswith("'<")


def test_the_patterns_of_lists_and_methods_are_found_too() -> None:
    names = {f"{module.__name__}.{key}" for module, key, _ in found()}
    assert {"strategies.core.client_context._BLOCKS", "proxy.tokens.media._PAGE"} <= names
    assert len({one for *_, value in found() for one in patterns_in(value)}) > 150
