"""Exact names and numbers are found by their form; keys of JSON are none."""

import json

import pytest

from strategies.core.names import MAX_CHARACTERS, find_names, has_name, ranked_names, without_keys


def names(text: str) -> list[str]:
    return list(find_names(text))


@pytest.mark.parametrize(
    "name",
    [
        "src/app.py", ".pre-commit.yaml", "src/app.py:12", "/etc/nginx/conf.d", "./run.sh", "C:\\data\\x.txt", "https://x.org/a?b=1",
        "ann@x.org", "3fa9c1d7e2", "0f8fad5b-d9cb-469f-a165-70867728950e", "ORD-4711", "web-01", "max_tokens",
        "parseHeader", "HttpClient", "MAX_TOKENS",
    ],
)  # fmt: skip
def test_a_name_is_found_word_for_word(name: str) -> None:
    assert names(f"We saw {name}, there.") == [name]
    assert name in names(f"我们看到 {name}\n好")


@pytest.mark.parametrize("number", ["250ms", "12%", "$4.50", "30 MB", "99887766", "2024-05-01", "192.168.0.1:80"])
def test_a_number_is_listed_with_the_words_that_name_it(number: str) -> None:
    assert names(f"The limit is {number}.") == [f"The limit is {number}"]


@pytest.mark.parametrize("number", ["250ms", "12%", "30 MB", "99887766", "2024-05-01"])
def test_a_bare_number_is_not_listed(number: str) -> None:
    assert names(number) == []
    assert names(f"So it was: {number}.") == []


def test_words_are_no_names() -> None:
    assert names("He/she and/or I saw 1/2 of 3 things, well-known, USA, 中文。 OK!") == []
    assert not has_name("He and I saw the well-known things.")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_keys_of_json_are_no_names_however_often_they_are_escaped(depth: int) -> None:
    text: str = json.dumps({"flight_number": "HAT-204", "paid_by": {"card_id": "visa_77"}, "seat_rows": [12, 13]})
    for _ in range(depth):
        text = json.dumps(text)
    assert names(text) == ["HAT-204", "visa_77"]


def test_a_key_names_the_number_behind_it() -> None:
    assert names(json.dumps({"zip_code": 10001})) == ["zip code 10001"]


def test_text_that_is_no_json_is_read_as_it_stands() -> None:
    assert without_keys("Use max_tokens: it is at a.py") == "Use max_tokens: it is at a.py"


def test_of_a_long_text_both_ends_are_read() -> None:
    text = f"A-1 {'x ' * MAX_CHARACTERS} B-2 {'x ' * MAX_CHARACTERS} C-3"
    assert names(text) == ["A-1", "C-3"]


def test_what_was_mentioned_last_comes_first() -> None:
    assert ranked_names([["a-1", "b-2"], ["c-3"], ["b-2", "d-4"]], {"d-4"}) == ["b-2", "c-3", "a-1"]
