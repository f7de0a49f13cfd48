"""Excerpts keep both ends and say what they left out."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.excerpt import cut_text, shorten_message
from tests.strategies.test_invariants import STABLE
from tests.support.transcripts import WORDS, message, tiktoken_counter, tool, user, words

NOTE = WORDS.text("[… 1,000,000 characters left out …]")


def test_a_text_that_fits_is_not_cut() -> None:
    assert cut_text("a b c", 3, WORDS) == "a b c"


def test_a_cut_keeps_the_beginning_and_the_end() -> None:
    cut = cut_text(f"BEGIN {words(1_000)} exit code 1", 100, WORDS)
    assert cut.startswith("BEGIN")
    assert cut.endswith("exit code 1")
    assert "characters left out" in cut
    assert 60 <= WORDS.text(cut) <= 100


@given(text=st.text(max_size=400), times=st.integers(1, 40), cap=st.integers(0, 200))
@STABLE
def test_a_cut_text_has_at_most_its_cap(text: str, times: int, cap: int) -> None:
    cut = cut_text(text * times, cap, WORDS)
    assert WORDS.text(cut) <= max(cap, NOTE)


@pytest.mark.parametrize(
    "text", ["修复解析器中的错误。" * 300, "a" * 5_000, " " * 5_000, "\u0301" * 3_000, "{}" * 2_000]
)
@pytest.mark.parametrize("cap", [20, 100, 700])
def test_a_cut_holds_for_a_real_tokenizer(text: str, cap: int) -> None:
    counter = tiktoken_counter()
    assert counter.text(cut_text(text, cap, counter)) <= cap


def test_a_shortened_message_keeps_all_but_its_content() -> None:
    body = {**tool("c1", words(500)), "name": "bash", "extra": {"x": 1}}
    cut = json.loads(shorten_message(message(body), 100, WORDS))
    assert {**cut, "content": ""} == {**body, "content": ""}
    assert WORDS.message(cut) <= 100


def test_a_message_that_fits_keeps_its_bytes() -> None:
    short = message(tool("c1", "ok"), raw='{ "role":"tool","tool_call_id":"c1","content":"ok"}')
    assert shorten_message(short, 100, WORDS) == short.raw


def test_parts_that_are_no_text_are_named_in_a_shortened_message() -> None:
    parts = [{"type": "text", "text": words(300)}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    cut = json.loads(shorten_message(message(user(parts)), 100, WORDS))
    assert cut["content"].endswith("[image_url]")


def test_a_message_with_a_too_large_picture_keeps_its_text() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    large = replace(message(user(parts)), tokens=5_000)
    assert json.loads(shorten_message(large, 100, WORDS))["content"] == "look\n[image_url]"
