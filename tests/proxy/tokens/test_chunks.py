"""Long text is counted in pieces that change nothing, and hostile text cannot break the counter."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.ranks import CHUNK_CHARS, SAMPLE_CHARS, chunks, count_in_chunks, estimate

Encodings = Callable[[str], tiktoken.Encoding]
ENGLISH = "The quick brown fox didn't jump; it walked around the lazy dog, twice.\n"
CHINESE = "天气很好，我们去公园吧。 我们 也 可以 在家 看书。\n"
SOURCE = inspect.getsource(random)


def counted(encoding: tiktoken.Encoding, text: str) -> int:
    return count_in_chunks(text, lambda chunk: len(encoding.encode_ordinary(chunk)))


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
@pytest.mark.parametrize("unit", [ENGLISH, CHINESE, SOURCE], ids=["english", "chinese", "source"])
def test_real_text_costs_the_same_in_chunks_as_whole(name: str, unit: str, encodings: Encodings) -> None:
    encoding = encodings(name)
    text = unit * (300_000 // len(unit))
    assert counted(encoding, text) == len(encoding.encode_ordinary(text))


def test_unbroken_text_is_off_by_a_few_tokens_at_most(encodings: Encodings) -> None:
    encoding = encodings("o200k_base")
    text = "".join(random.Random(3).choices("ABCDEFabcdef0123456789+/", k=400_000))
    assert abs(counted(encoding, text) - len(encoding.encode_ordinary(text))) <= 12


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
@pytest.mark.parametrize("unit", [" ", "\t", "\u00a0", "a", "=", "\n", "\U0001f600", "字"])
def test_a_million_equal_characters_are_counted(name: str, unit: str, encodings: Encodings) -> None:
    tokens = counted(encodings(name), unit * 1_000_000 + "end")
    assert 0 < tokens <= 4 * 1_000_000


def test_a_text_beyond_the_cap_is_extrapolated_from_samples(encodings: Encodings) -> None:
    encoding = encodings("o200k_base")
    seen: list[int] = []

    def encode(chunk: str) -> int:
        seen.append(len(chunk))
        return len(encoding.encode_ordinary(chunk))

    text = ENGLISH * (6_000_000 // len(ENGLISH))
    tokens = count_in_chunks(text, encode)
    whole = len(encoding.encode_ordinary(ENGLISH)) * (len(text) // len(ENGLISH))
    assert sum(seen) <= SAMPLE_CHARS
    assert abs(tokens - whole) < 0.01 * whole


class PanicException(BaseException):
    """As pyo3 raises it: no Exception, and not importable from anywhere."""


def test_a_panic_of_the_tokenizer_costs_precision_and_nothing_else() -> None:
    def panics(chunk: str) -> int:
        raise PanicException("regex stack overflow")

    assert count_in_chunks("some text", panics) == estimate("some text")


def test_an_interrupt_is_not_taken_for_a_panic() -> None:
    def interrupted(chunk: str) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_in_chunks("some text", interrupted)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([" ", "\n", "a", " b", "\nc", "ü", "字", "x" * 3_000]), max_size=200))
def test_chunks_are_the_text_in_order_and_bounded(pieces: list[str]) -> None:
    text = "".join(pieces)
    parts = list(chunks(text))
    assert "".join(parts) == text
    assert all(0 < len(part) <= CHUNK_CHARS for part in parts)
