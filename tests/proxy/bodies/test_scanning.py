"""What one body may hold: messages, members and values are counted while it is read, and text costs nothing."""

import asyncio
import json

import pytest

from proxy.bodies.message_cache import MessageCache
from proxy.bodies.scanning import PIECE_SHARE, Bounds
from proxy.errors import BodyTooLarge
from tests.support.chat_bodies import Tally, read, read_through_cache

BOUNDS = Bounds(messages=30, members=10, values=2_000)
PIECE = BOUNDS.values // PIECE_SHARE
HI = b'{"role":"user","content":"hi"}'


def body(messages: bytes = HI, members: bytes = b"") -> bytes:
    return b'{"model":"m",%s"messages":[%s]}' % (members, messages)


def numbers(count: int) -> bytes:
    return b"[" + b",".join([b"1"] * count) + b"]"


TOO_LARGE = {
    "messages": (body(b",".join([HI] * 31)), "messages"),
    "members of the body": (body(members=b"".join(b'"m%d":1,' % i for i in range(9))), None),
    "objects in a member": (body(members=b'"z":[%s],' % b",".join([b"{}"] * PIECE)), "z"),
    "numbers in a member": (body(members=b'"z":%s,' % numbers(PIECE + 1)), "z"),
    "values in a message": (body(b'%s,{"role":"user","x":%s}' % (HI, numbers(PIECE))), "messages[1]"),
    "values in an unfinished message": (body(b'{"role":"user","x":%s' % numbers(PIECE + 1)[:-1]), "messages[0]"),
    "values in all": (body(b",".join([b'{"role":"user","x":%s}' % numbers(PIECE - 20)] * 25)), None),
}


@pytest.mark.parametrize("name", TOO_LARGE)
@pytest.mark.parametrize("cache", [None, MessageCache()], ids=["without a cache", "with a cache"])
async def test_a_body_that_holds_too_much_is_refused_by_name(name: str, cache: MessageCache | None) -> None:
    data, param = TOO_LARGE[name]
    with pytest.raises(BodyTooLarge) as raised:
        read(data, cache, BOUNDS)
    assert raised.value.param == param
    with pytest.raises(BodyTooLarge) as raised:
        await read_through_cache(data, MessageCache(), BOUNDS)
    assert raised.value.param == param


@pytest.mark.parametrize("text", [",{[" * 5_000, '",\\"[{' * 5_000, "\\" * 9_999, "[1,2]" * 5_000])
def test_marks_within_strings_are_no_values(text: str) -> None:
    data = json.dumps({"messages": [{"role": "user", "content": text}], "z": [text]}).encode()
    for cache in (None, MessageCache()):
        assert read(data, cache, BOUNDS).elements[0].value["content"] == text


def test_messages_that_were_seen_before_count_too() -> None:
    cache = MessageCache()
    texts = [b'{"role":"user","content":"%d"}' % i for i in range(31)]
    cache.keep(read(body(b",".join(texts[:30])), cache, BOUNDS).elements)
    with pytest.raises(BodyTooLarge):
        read(body(b",".join(texts)), cache, BOUNDS)


def test_an_agents_50_000_messages_are_read_and_one_more_is_not() -> None:
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments":""}}'
    called = b'{"role":"assistant","content":null,"tool_calls":[%s]}' % call
    pairs = [b'%s,{"role":"tool","tool_call_id":"c","content":"%d"}' % (called, i) for i in range(25_000)]
    assert len(read(body(b",".join(pairs)), MessageCache()).elements) == 50_000
    with pytest.raises(BodyTooLarge):
        read(body(b",".join((*pairs, HI))), MessageCache())


async def test_other_work_goes_on_while_a_long_history_is_read() -> None:
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.ensure_future(other_work())
    history = [{"role": "user", "content": f"{i} " + "x" * 1_000} for i in range(1_000)]
    read_body = await read_through_cache(json.dumps({"messages": history}).encode(), MessageCache(), Bounds())
    working.cancel()
    assert len(read_body.elements) == 1_000
    assert turns > 5


@pytest.mark.parametrize("string", ["x" * 3_000_000, '\\"{[,' * 400_000, "\\\\" * 700_000, "😀," * 600_000])
def test_a_piece_is_not_complete_within_a_long_string(string: str) -> None:
    text = f'{{"content":"{string}"}}'
    tally = Tally(BOUNDS, len(text))
    assert tally.check_piece(text, "m", 0)
    assert tally.check_piece(text + ',{"content":', "m", 0)
    for end in (len(text) - 1, len(text) - 2, len(text) // 2, len(text) // 2 + 1):
        assert not tally.check_piece(text[:end], "m", 0)
