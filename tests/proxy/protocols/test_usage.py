"""Reading the usage of a reply while it is relayed."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator

import pytest

from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.replies import Usage, ending, usage_in
from proxy.protocols.watching import TAIL, WatchedReply
from tests.support.packing import PACKS

WHOLE = b'{"id":"1","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
FILLER = json.dumps({"choices": [{"delta": {"content": "word " * 20}}], "usage": None}).encode()
STREAM = (
    b"data: " + FILLER + b"\n\n"
) * 2_000 + b'data: {"choices":[],"usage":{"prompt_tokens":7}}\n\ndata: [DONE]\n\n'


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def fed(data: bytes, *, size: int = 1_000, encoding: str = "") -> WatchedReply:
    reader = WatchedReply(CHAT_ENDPOINT, [(b"content-encoding", encoding.encode())])
    for piece in pieces(data, size):
        reader.feed(piece)
    return reader


def read(data: bytes, *, size: int = 1_000, encoding: str = "") -> Usage | None:
    return fed(data, size=size, encoding=encoding).usage()


def test_the_usage_is_found_however_a_reply_is_cut() -> None:
    for size in [1, 2, 7, 64, 4_096]:
        assert read(WHOLE, size=size) == Usage(7, 3)
    assert read(STREAM) == Usage(7)
    events = b"".join(b'data: {"choices":[{}],"usage":{"prompt_tokens":%d}}\n\n' % n for n in (5, 6, 7))
    assert read(events) == Usage(7)
    text = json.dumps("word " * TAIL).encode()
    assert read(b'{"usage":{"prompt_tokens":7},"choices":[{"message":{"content":' + text + b"}}]}") == Usage(7)
    for encoding in ["gzip", "deflate", "br", "zstd"]:
        assert read(PACKS[encoding](WHOLE), size=5, encoding=encoding) == Usage(7, 3)
    assert read(gzip.compress(WHOLE) + b"\x00" * 20, size=7, encoding="gzip") == Usage(7, 3)


ANTHROPIC = b"""event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","content":[],\
"stop_reason":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":400,\
"output_tokens":1}}}

%sevent: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":%s}

event: message_stop
data: {"type":"message_stop"}

"""
DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta"}}\n\n'


@pytest.mark.parametrize("deltas", [2, 2_000], ids=["short", "longer than what is kept"])
@pytest.mark.parametrize(
    "last",
    [
        b'{"output_tokens":12}',
        b'{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":400,"output_tokens":12}',
        b'{"input_tokens":0,"cache_read_input_tokens":null,"output_tokens":12}',
    ],
    ids=["output alone", "all, cumulative", "no input"],
)
def test_anthropics_usage_is_in_the_first_and_last_event(last: bytes, deltas: int) -> None:
    assert read(ANTHROPIC % (DELTA * deltas, last)) == Usage(435, 12, 400, 10)


def test_a_reply_without_a_readable_usage_has_none() -> None:
    content = json.dumps({"choices": [{"message": {"content": WHOLE.decode()}}]}).encode()
    assert read(content) is None
    for encoding in ["compress", "br", "gzip", "zstd"]:
        assert read(WHOLE, encoding=encoding) is None
    for data in [b"", b"<html>", b'{"usage":', b'{"usage":{"prompt_tokens":"7"}}', b'{"usage":null}']:
        assert read(data) is None


@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_reply_of_several_members_is_read(encoding: str, size: int) -> None:
    pack = PACKS[encoding]
    packed = pack(WHOLE[:20]) + pack(b"") + pack(WHOLE[20:])
    assert read(packed, size=size, encoding=encoding) == Usage(7, 3)


def test_a_packed_reply_that_is_a_bomb_has_no_usage() -> None:
    bomb = gzip.compress(bytes(60_000_000))
    tracemalloc.start()
    assert fed(bomb, size=len(bomb), encoding="gzip").usage() is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60_000_000 / 2


def test_little_of_a_long_reply_is_kept() -> None:
    reader = WatchedReply(CHAT_ENDPOINT, [])
    for _ in range(1_000):
        reader.feed(b"x" * 10_000)
    assert sum(map(len, reader._tail)) < TAIL + 10_000


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(9, 0, 4)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 90}}, Usage(99, 0, 90)),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 90}}, Usage(99, 0, 90)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5}, Usage(9, 0, 4)),
        ({"input_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3}, Usage(10, 0, 5, 3)),
        (
            {
                "input_tokens": 2_006,
                "input_tokens_details": {"cached_tokens": 1_920},
                "output_tokens": 300,
                "output_tokens_details": {"reasoning_tokens": 192},
                "total_tokens": 2_306,
            },
            Usage(2_006, 300, 1_920),
        ),
        ({"completion_tokens": 3}, None),
        ([], None),
    ],
)
def test_tokens_from_a_cache_are_tokens_of_the_prompt(value: object, usage: Usage | None) -> None:
    assert usage_in(value) == usage


def test_the_ending_of_a_reply_is_read_from_its_last_bytes() -> None:
    assert fed(WHOLE).ending() == fed(gzip.compress(WHOLE), size=5, encoding="gzip").ending() == ending("hi")
    assert fed(STREAM).ending() == ending("word " * 20)
    text = json.dumps("word " * TAIL).encode()
    assert fed(b'{"choices":[{"message":{"content":' + text + b"}}]}").ending() == ""
    assert fed(WHOLE, encoding="br").ending() == ""
