"""Joining event streams: the output does not depend on how the input is cut, and any client can read it."""

import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.sse import MAX_EVENT
from proxy.protocols.chat import MAX_ARGUMENTS, ChatSplicer
from proxy.protocols.hidden_calls import NO_ANSWER
from proxy.protocols.messages import MessagesSplicer
from proxy.protocols.responses import ResponsesSplicer
from proxy.servers.upstream.messages import MAX_READ, read_whole
from tests.strategies.test_invariants import STABLE
from tests.support import replies
from tests.support.giants import giant, most_held
from tests.support.replies import Chunk, ToolCall
from tests.support.searching import CALLED, SEARCH, assembled, renamed, reply_calls, reply_opening, search

LOOKS = ToolCall("look", '{"at": "bärrel 桶"}', "call_look")
USED = replies.usage_chunk(100, 10)


def written(*chunks: Chunk, done: bool = True, line_end: bytes = b"\n") -> bytes:
    data = b"".join(map(replies.sse, chunks)) + (replies.DONE if done else b"")
    return data.replace(b"\n", line_end)


def spliced(streams: Sequence[bytes], cuts: Sequence[int] = (), most: int = 3) -> bytes:
    """What the client gets of these streams, each cut at these places."""
    splicer = ChatSplicer(runs_calls=most > 0)
    told = b""
    for place, stream in enumerate(streams):
        if place:
            assert splicer.is_continued
            splicer.begin(runs_calls=place < most)
        edges = [0, *sorted({cut % len(stream) for cut in cuts}), len(stream)]
        for start, end in pairwise(edges):
            told += splicer.feed(stream[start:end])
        told += splicer.rest()
    assert not splicer.is_continued
    return told


def chunks_in(told: bytes) -> list[dict[str, Any]]:
    events = [each[6:] for each in told.decode().split("\n\n") if each.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [json.loads(each) for each in events]


FIRST = written(*reply_opening("Let me "), *reply_calls(search(), search("桶", "call_m2")), CALLED, USED)
LAST = written(
    *(
        renamed(each, "other")
        for each in (*reply_opening("look. "), *reply_calls(LOOKS), CALLED, replies.usage_chunk(150, 7))
    )
)
MIXED = written(*reply_opening("Both. "), *reply_calls(search(), LOOKS), CALLED, USED)


@given(cuts=st.lists(st.integers(0, 5_000), max_size=60))
@STABLE
def test_wherever_the_bytes_are_cut_the_client_gets_the_same(cuts: list[int]) -> None:
    assert spliced([FIRST, LAST], cuts) == spliced([FIRST, LAST])
    assert spliced([MIXED], cuts) == spliced([MIXED])


def test_byte_by_byte_two_replies_become_one() -> None:
    assert spliced([FIRST, LAST], range(5_000)) == spliced([FIRST, LAST])
    splicer = ChatSplicer(runs_calls=True)
    message = assembled(chunks_in(splicer.feed(MIXED)))
    assert (message["content"], message["tool_calls"], message["finish"]) == ("Both. ", [LOOKS.as_json()], "tool_calls")
    assert (splicer.has_searches, splicer.is_continued) == (True, False)
    message = assembled(chunks_in(spliced([FIRST, LAST])))
    assert (message["content"], message["tool_calls"]) == ("Let me look. ", [LOOKS.as_json()])
    assert message["usage"] == {"prompt_tokens": 150, "completion_tokens": 17, "total_tokens": 167}


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"], ids=["crlf", "cr"])
@given(cuts=st.lists(st.integers(0, 5_000), max_size=30))
@STABLE
def test_other_line_ends_are_kept(line_end: bytes, cuts: list[int]) -> None:
    streams = [each.replace(b"\n", line_end) for each in (FIRST, LAST)]
    assert spliced(streams, cuts).replace(line_end, b"\n") == spliced([FIRST, LAST])


EVENTS = [
    b": ping\n\n",
    b'data: {"choices": [ {"index":0,"delta":{"content":"\\u00e9 x"},"finish_reason":null} ], "x": 1e2}\n\n',
    b'event: odd\ndata: {"a":\ndata: 1}\n\n',
    b"data: no json\r\n\r\n",
    b'data:{"id":"","choices":[],"prompt_filter_results":[]}\n\n',
    replies.sse(replies.chunk({"role": "assistant", "content": ""})),
    replies.sse(replies.chunk({"reasoning_content": "hm"})),
    replies.sse(
        replies.chunk({"tool_calls": [{"index": 3, "id": "x", "function": {"name": "look", "arguments": "{}"}}]})
    ),
    replies.sse(replies.chunk({"function_call": {"name": "old", "arguments": "{}"}})),
    replies.sse(replies.chunk({}, finish="stop")),
    replies.sse(USED),
    replies.stream_error(),
    b'data: {"choices": [null], "delta": "x"}\n\n',
    b'data: {"choices": [{"delta": "text", "finish_reason": null}]}\n\n',
]


@given(events=st.lists(st.sampled_from(EVENTS), max_size=12), cuts=st.lists(st.integers(0, 2_000), max_size=20))
@STABLE
def test_a_reply_that_searches_nothing_passes_byte_for_byte(events: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(events) + replies.DONE
    assert spliced([stream], cuts) == stream


def test_a_comment_and_a_cut_call_do_not_wait_for_more() -> None:
    assert ChatSplicer(runs_calls=True).feed(b": ping\n") == b": ping\n"
    splicer = ChatSplicer(runs_calls=True)
    cut = written(*reply_opening("Let me"), *reply_calls(search())[:2], done=False) + b"data: {"
    told = splicer.feed(cut) + splicer.rest()
    assert told == written(*reply_opening("Let me"), done=False) + b"data: {"
    assert not splicer.is_continued


def test_of_endless_arguments_of_a_search_only_the_beginning_is_kept() -> None:
    splicer = ChatSplicer(runs_calls=True)
    splicer.feed(written(*reply_calls(search())[:2], done=False))
    more = {"index": 0, "function": {"arguments": "x" * 8_000}}
    for _ in range(100):
        assert splicer.feed(replies.sse(replies.chunk({"tool_calls": [more]}))) == b""
    (call,) = splicer.said.memory_calls
    assert len(call["function"]["arguments"]) == MAX_ARGUMENTS


class Endless:
    """A reply in one piece that has no end; counts the chunks that were taken."""

    status, taken, is_closed = 200, 0, False

    def __init__(self) -> None:
        self.headers = [(b"content-type", b"application/json")]

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            self.taken += 1
            yield b"x" * (1024 * 1024)

    async def close(self) -> None:
        self.is_closed = True


async def test_a_reply_that_is_too_long_to_be_read_passes_as_it_comes() -> None:
    reply = Endless()
    read = await read_whole(reply)
    assert (read.is_whole, read.headers, reply.taken) == (False, reply.headers, MAX_READ // (1024 * 1024) + 1)
    passed = read.chunks()
    assert len(await anext(passed)) > MAX_READ
    assert len(await anext(passed)) == 1024 * 1024
    assert not reply.is_closed
    await read.close()
    assert reply.is_closed


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", None])
def test_a_wrong_reason_to_finish_or_none_does_not_matter(finish: str | None) -> None:
    end = [replies.chunk({}, finish=finish)] if finish else []
    told = spliced([written(*reply_opening(""), *reply_calls(search()), *end), LAST])
    assert assembled(chunks_in(told))["finish"] == "tool_calls"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_reply_that_was_cut_short_is_the_last_one(finish: str) -> None:
    told = chunks_in(
        spliced([written(*reply_opening("Let me"), *reply_calls(search()), replies.chunk({}, finish=finish), USED)])
    )
    assert assembled(told)["finish"] == finish
    assert SEARCH not in str(told)


def test_what_is_left_after_the_last_round_is_told() -> None:
    told = chunks_in(spliced([FIRST, written(*reply_opening(None), *reply_calls(search()), CALLED, USED)], most=1))
    assert assembled(told)["finish"] == "stop"
    told = chunks_in(spliced([written(*reply_opening(None), *reply_calls(search()), CALLED)], most=0))
    choice = told[-1]["choices"][0]
    assert (choice["delta"], choice["finish_reason"]) == ({"content": NO_ANSWER}, "stop")


def piece(index: int | None = 0, name: str | None = None, arguments: str | None = None, **more: Any) -> Chunk:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    place = {} if index is None else {"index": index}
    return replies.chunk({"tool_calls": [{**place, **more, "function": function}]})


def heard(*chunks: Chunk) -> tuple[list[str], list[dict[str, Any]]]:
    """The arguments of the hidden calls, and the client's calls as a client puts them together."""
    splicer = ChatSplicer(runs_calls=True)
    told = splicer.feed(written(*reply_opening(""), *chunks, CALLED, USED))
    hidden = [call["function"]["arguments"] for call in splicer.said.memory_calls]
    return hidden, assembled(chunks_in(told)).get("tool_calls", []) if told.endswith(replies.DONE) else []


@pytest.mark.parametrize("name", ["search", "search_mem", "s"])
def test_a_name_that_is_only_the_beginning_of_ours_is_the_clients(name: str) -> None:
    parts = [piece(name=name, id="a", arguments=""), piece(arguments="{"), piece(arguments="}")]
    own = {"id": "a", "type": "function", "function": {"name": name, "arguments": "{}"}}
    assert heard(*parts) == ([], [own])


@pytest.mark.parametrize(
    "parts",
    [
        [piece(name="search_", id="a"), piece(name="memory"), piece(arguments='{"query":"x"}')],
        [piece(name="", id="a", arguments=""), piece(name=SEARCH, arguments='{"query":"x"}')],
        [replies.chunk({"tool_calls": [{"index": 0, "id": "a"}]}), piece(name=SEARCH), piece(0, None, '{"query":"x"}')],
    ],
    ids=["in pieces", "empty at first", "after the id"],
)
def test_a_call_is_held_back_until_its_name_comes(parts: list[Chunk]) -> None:
    assert heard(*parts) == (['{"query":"x"}'], [])


def test_calls_of_other_tools_whose_names_come_late_are_the_clients() -> None:
    parts = [piece(0, "sea", id="a"), piece(0, "rch", ""), piece(0, "_web", "{}")]
    parts += [piece(1, "", id="b"), piece(1, "look")]
    hidden, own = heard(*parts)
    assert hidden == []
    assert [(call["id"], *call["function"].values()) for call in own] == [("a", "search_web", "{}"), ("b", "look", "")]


def test_a_name_in_parts_is_sent_at_the_end_and_repeated_once() -> None:
    own = [{"id": id, "type": "function", "function": {"name": "search", "arguments": ""}} for id in ("a", "b")]
    parts = [piece(0, "search", "", id="a"), piece(1, SEARCH, "{}", id="m"), piece(2, "search", "", id="b")]
    assert heard(*parts) == (["{}"], own)
    parts = [piece(name=SEARCH, id="a", arguments='{"query"'), piece(name=SEARCH, id="a", arguments=':"x"}')]
    assert heard(*parts)[0] == ['{"query":"x"}']


def test_calls_numbered_alike_are_told_apart_by_id() -> None:
    parts = [piece(0, SEARCH, '{"query":"x"}', id="a"), piece(0, "look", "{}", id="b"), piece(0, "see", "{}", id="c")]
    hidden, own = heard(*parts)
    assert hidden == ['{"query":"x"}']
    assert [call["function"]["name"] for call in own] == ["look", "see"]
    splicer = ChatSplicer(runs_calls=True)
    splicer.feed(written(piece(None, SEARCH, '{"query":"x"}', id="a"), piece(None, SEARCH, "{}", id="b"), CALLED))
    assert [call["id"] for call in splicer.said.memory_calls] == ["a", "b"]


def test_what_else_a_model_says_goes_back_to_it() -> None:
    thought = {"google": {"thought_signature": "x"}}
    splicer = ChatSplicer(runs_calls=True)
    splicer.feed(
        written(
            replies.chunk({"role": "assistant", "reasoning_content": "I should "}),
            replies.chunk({"reasoning_content": "look."}),
            piece(0, SEARCH, '{"query":"x"}', id="a", extra_content=thought),
            CALLED,
        )
    )
    message = splicer.said.message
    assert message["reasoning_content"] == "I should look."
    assert message["tool_calls"][0]["extra_content"] == thought


@pytest.mark.parametrize("kind", [ChatSplicer, MessagesSplicer, ResponsesSplicer])
@pytest.mark.parametrize("line", [b"x" * 65_536, b"x" * 65_535 + b"\n"], ids=["one line", "many lines"])
def test_an_event_that_is_too_long_passes_in_pieces(kind: type[ChatSplicer], line: bytes) -> None:
    splicer = kind(runs_calls=True)
    assert most_held(splicer.feed, giant(line=line), splicer.rest) <= MAX_EVENT + len(line)
    assert not splicer.is_continued


def test_hidden_calls_are_found_after_an_event_that_was_too_long() -> None:
    splicer = ChatSplicer(runs_calls=True)
    for chunk in giant():
        splicer.feed(chunk)
    splicer.feed(FIRST)
    assert splicer.is_continued
