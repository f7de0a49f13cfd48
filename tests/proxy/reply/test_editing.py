"""The edited usage: its counts are raised or its event is removed, and no other byte is changed."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints.chat.endpoint import CHAT_ENDPOINT
from proxy.http.sse import MAX_EVENT
from proxy.reply.watching import StreamEditor, WholeEditor, add_prompt_tokens
from tests.support import replies
from tests.support.giants import giant, most_held

CHUNKS = [replies.sse(each) for each in replies.text_chunks('He said: "usage":{"prompt_tokens":1}')]
USAGE = replies.sse(replies.usage_chunk(40, 3))
STREAM = b"".join([b": waiting\n\n", *CHUNKS, USAGE, replies.DONE])


def fed(editor: StreamEditor, data: bytes, cuts: list[int]) -> bytes:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    return b"".join(editor.feed(piece) for piece in pieces if piece) + editor.end()


@given(st.lists(st.integers(0, 5_000), max_size=8))
def test_the_usage_event_is_removed_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    assert fed(StreamEditor(CHAT_ENDPOINT, 0, removes_usage=True), STREAM, cuts) == STREAM.replace(USAGE, b"")


@given(st.lists(st.integers(0, 5_000), max_size=8))
def test_prompt_tokens_are_added_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    assert fed(StreamEditor(CHAT_ENDPOINT, 1_000, removes_usage=False), STREAM, cuts) == STREAM.replace(
        USAGE, replies.sse(replies.usage_chunk(1_040, 3))
    )


@pytest.mark.parametrize("choices", [b'"choices": [], ', b'"choices": null, '])
def test_a_usage_event_is_removed_however_it_says_that_it_has_no_choices(choices: bytes) -> None:
    event = b"data: {" + choices + b'"usage": {"prompt_tokens": 5}}\n\n'
    assert fed(StreamEditor(CHAT_ENDPOINT, 0, removes_usage=True), event, [30]) == b""


@pytest.mark.parametrize("ending", [b"\r\n\r\n", b"\n\n"])
def test_a_usage_in_a_chunk_with_a_choice_is_not_removed(ending: bytes) -> None:
    event = b'data: {"choices": [{"index": 0, "delta": {}}], "usage": {"prompt_tokens": 5}}' + ending
    assert fed(StreamEditor(CHAT_ENDPOINT, 0, removes_usage=True), event, [30]) == event
    assert b'"prompt_tokens": 7' in fed(StreamEditor(CHAT_ENDPOINT, 2, removes_usage=False), event, [30])


def test_a_stream_that_breaks_off_in_an_event_is_passed_on_as_far_as_it_came() -> None:
    broken = STREAM[: STREAM.index(b'"prompt_tokens": 40')]
    assert fed(StreamEditor(CHAT_ENDPOINT, 9, removes_usage=True), broken, []) == broken


def test_a_reply_in_one_piece_gets_more_tokens_and_keeps_all_else() -> None:
    body = b'{"big":12345678901234567890,"usage" : {"prompt_tokens":40,"completion_tokens":3,"total_tokens":43}, "x":1}'
    editor = WholeEditor(1_000)
    assert editor.feed(body[:50]) == editor.feed(body[50:]) == b""
    shown = editor.end()
    assert json.loads(shown)["usage"] == {"prompt_tokens": 1_040, "completion_tokens": 3, "total_tokens": 1_043}
    assert shown.startswith(b'{"big":12345678901234567890,"usage" : {')
    assert shown.endswith(b'}, "x":1}')


@pytest.mark.parametrize("text", [b"", b'{"usage": null}', b'"usage"', b'{"usage": {"prompt', b'{"usage": [1]}'])
def test_a_text_without_a_usage_is_unchanged(text: bytes) -> None:
    assert add_prompt_tokens(text, 5) == text


@given(st.binary(max_size=300), st.integers(0, 9))
def test_any_bytes_are_accepted(data: bytes, more: int) -> None:
    add_prompt_tokens(b'{"usage":' + data, more)
    assert fed(StreamEditor(CHAT_ENDPOINT, 0, removes_usage=False), data, [7]) == data


@pytest.mark.parametrize("line", [b"x" * 65_536, b"x" * 65_535 + b"\n"], ids=["one line", "many lines"])
def test_an_event_that_is_too_long_passes_in_pieces_and_the_next_is_edited(line: bytes) -> None:
    editor = StreamEditor(CHAT_ENDPOINT, 0, removes_usage=True)
    assert most_held(editor.feed, giant(line=line), lambda: b"") <= MAX_EVENT + len(line)
    assert fed(editor, STREAM, [100]) == STREAM.replace(USAGE, b"")
