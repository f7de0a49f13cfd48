"""The event reader: the same events, wherever the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.sse import EventReader, LineSplitter

STREAM = 'data: {"a": "é"}\n\n: a comment\n\nid: 7\r\ndata: one\r\ndata: two\r\n\r\ndata: [DONE]\n\n'.encode()
EVENTS = ['{"a": "é"}', "one\ntwo", "[DONE]"]


def read(*chunks: bytes) -> list[str]:
    reader = EventReader()
    return [data for chunk in chunks for data in reader.feed(chunk)]


@pytest.mark.parametrize("at", range(1, len(STREAM)))
def test_a_cut_at_any_byte_changes_nothing(at: int) -> None:
    assert read(STREAM[:at], STREAM[at:]) == EVENTS


def test_an_unfinished_line_is_not_searched_again_with_each_chunk() -> None:
    lines, chunk = LineSplitter(), b"x" * 4_096
    for _ in range(1_000):
        assert lines.feed(chunk) == []
    assert all(kept is chunk for kept in lines._rest)
    assert lines.feed(b"\r") == []
    assert lines.feed(b"\n:") == [b"x" * 4_096_000 + b"\r\n"]
    assert lines.take_rest() == b":"


@given(st.text(alphabet="ab\r\n:", max_size=12).map(str.encode), st.lists(st.integers(0, 12), max_size=4))
def test_lines_are_the_same_wherever_the_bytes_are_cut(text: bytes, cuts: list[int]) -> None:
    whole, lines = LineSplitter(), LineSplitter()
    places = [0, *sorted(cuts), len(text)]
    cut = [line for start, end in pairwise(places) for line in lines.feed(text[start:end])]
    once = whole.feed(text)
    # A line that may have ended with a CR waits for what follows, in either way.
    assert b"".join([*cut, lines.take_rest()]) == b"".join([*once, whole.take_rest()]) == text
    assert cut == once or b"\r" in text
    assert all(line.endswith((b"\r", b"\n")) for line in cut)
