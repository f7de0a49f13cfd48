"""The event reader: the same events, wherever the bytes are cut."""

from __future__ import annotations

import pytest

from proxy.sse import EventReader

STREAM = 'data: {"a": "é"}\n\n: a comment\n\nid: 7\r\ndata: one\r\ndata: two\r\n\r\ndata: [DONE]\n\n'.encode()
EVENTS = ['{"a": "é"}', "one\ntwo", "[DONE]"]


def read(*chunks: bytes) -> list[str]:
    reader = EventReader()
    return [data for chunk in chunks for data in reader.feed(chunk)]


def test_a_whole_stream_gives_the_data_of_its_events() -> None:
    assert read(STREAM) == EVENTS


@pytest.mark.parametrize("at", range(1, len(STREAM)))
def test_a_cut_at_any_byte_changes_nothing(at: int) -> None:
    assert read(STREAM[:at], STREAM[at:]) == EVENTS


def test_single_bytes_give_the_same_events() -> None:
    assert read(*(bytes([byte]) for byte in STREAM)) == EVENTS


def test_an_event_that_did_not_end_is_not_given() -> None:
    assert read(b"data: half") == []
