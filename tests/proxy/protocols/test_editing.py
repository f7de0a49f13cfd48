"""The usage event of a stream is removed, and no other byte is changed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.sse import MAX_EVENT
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.watching import UsageRemover
from tests.support import replies
from tests.support.giants import giant, most_held

CHUNKS = [replies.sse(each) for each in replies.text_chunks('He said: "usage":{"prompt_tokens":1}')]
USAGE = replies.sse(replies.usage_chunk(40, 3))
STREAM = b"".join([b": waiting\n\n", *CHUNKS, USAGE, replies.DONE])


def fed(editor: UsageRemover, data: bytes, cuts: list[int]) -> bytes:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    return b"".join(editor.feed(piece) for piece in pieces if piece) + editor.end()


@given(st.lists(st.integers(0, 5_000), max_size=8))
def test_the_usage_event_is_removed_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    assert fed(UsageRemover(CHAT_ENDPOINT), STREAM, cuts) == STREAM.replace(USAGE, b"")


def test_only_a_whole_usage_event_without_choices_is_removed() -> None:
    for choices in [b'"choices": [], ', b'"choices": null, ']:
        event = b"data: {" + choices + b'"usage": {"prompt_tokens": 5}}\n\n'
        assert fed(UsageRemover(CHAT_ENDPOINT), event, [30]) == b""
    for ending in [b"\r\n\r\n", b"\n\n"]:
        event = b'data: {"choices": [{"index": 0, "delta": {}}], "usage": {"prompt_tokens": 5}}' + ending
        assert fed(UsageRemover(CHAT_ENDPOINT), event, [30]) == event
    broken = STREAM[: STREAM.index(b'"prompt_tokens": 40')]
    assert fed(UsageRemover(CHAT_ENDPOINT), broken, []) == broken


@given(st.binary(max_size=300))
def test_any_bytes_are_accepted(data: bytes) -> None:
    assert fed(UsageRemover(CHAT_ENDPOINT), data, [7]) == data


@pytest.mark.parametrize("line", [b"x" * 65_536, b"x" * 65_535 + b"\n"], ids=["one line", "many lines"])
def test_a_too_long_event_passes_in_pieces(line: bytes) -> None:
    editor = UsageRemover(CHAT_ENDPOINT)
    assert most_held(editor.feed, giant(line=line), lambda: b"") <= MAX_EVENT + len(line)
    assert fed(editor, STREAM, [100]) == STREAM.replace(USAGE, b"")
