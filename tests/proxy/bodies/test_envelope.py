"""The text around the messages: parsed once for the same bytes, cached within bounds, and never mistaken."""

import asyncio
import json

import pytest

from proxy.bodies.message_cache import MessageCache
from proxy.bodies.scanning import DEFAULT_BOUNDS, MAX_LEVELS, MIN_ENTRIES, Envelopes, scan_members
from proxy.errors import BadRequest
from tests.support.chat_bodies import Envelope, Tally, read

TALLY = Tally(DEFAULT_BOUNDS, 1_000_000)
BEFORE, BEHIND = b'{"model":"m","messages":[', b'],"tools":[{"type":"function","function":{"name":"f"}}]}'


def body(text: str, **members: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **members}).encode()


def test_the_same_bytes_are_read_once_and_others_anew() -> None:
    envelopes = Envelopes()
    envelope = asyncio.run(envelopes.read(BEFORE, BEHIND, TALLY))
    assert envelope is not None
    assert envelope.values == {"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert asyncio.run(envelopes.read(BEFORE, BEHIND, TALLY)) is envelope
    others = [asyncio.run(envelopes.read(before, BEHIND, TALLY)) for before in (BEFORE + b" ", b" " + BEFORE)]
    assert len({id(envelope), *map(id, others)}) == len(envelopes) == 3


def test_only_the_array_of_the_messages_is_taken_for_them() -> None:
    envelopes = Envelopes()
    data = b'{"messages":[],"x":{"messages":[]}}'
    first, second = data.index(b"[") + 1, data.rindex(b"[") + 1
    assert asyncio.run(envelopes.read(data[:first], data[first:], TALLY)) is not None
    assert asyncio.run(envelopes.read(data[:second], data[second:], TALLY)) is None
    for before in [b'{"x":{"messages":[', b'{"messages":{"messages":[']:
        envelopes = Envelopes()
        assert asyncio.run(envelopes.read(before, b"]}}", TALLY)) is None
        assert len(envelopes) == 0


def test_requests_that_share_an_envelope_keep_their_own_messages() -> None:
    seen = MessageCache()
    one, other = (read(body(text, tools=[{"n": 1}]), seen) for text in ("a", "b"))
    assert one.envelope is other.envelope
    assert [each.value["content"] for each in (*one.elements, *other.elements)] == ["a", "b"]
    for text in ("é", "longer than that"):
        data = body(text, condenser={"force": True}, n=1)
        cut = read(data, seen).spliced(model="other")
        assert json.loads(cut) == {"model": "other", "messages": [{"role": "user", "content": text}], "n": 1}


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (b'{"messages":[', b"]} {}"),
        (b'{"messages":[', b'],"a":\xff}'),
        (b'{"messages":[', b'],"a":' + b"[" * 100_000),
        (b'{"messages":[', b'],"messages":[]}'),
        (b'[{"messages":[', b"]}]"),
        (b'{"messages":[', b'],"a":' + b"[" * (MAX_LEVELS + 1) + b"]" * (MAX_LEVELS + 1) + b"}"),
    ],
)
def test_text_that_cannot_be_parsed_is_not_cached(before: bytes, behind: bytes) -> None:
    envelopes = Envelopes()
    for _ in range(2):
        with pytest.raises((ValueError, RecursionError, BadRequest)):
            asyncio.run(envelopes.read(before, behind, TALLY))
    assert len(envelopes) == 0


def test_the_least_recently_used_envelope_is_evicted_first() -> None:
    envelopes = Envelopes(max_bytes=20_000)
    used = asyncio.run(envelopes.read(BEFORE, BEHIND, TALLY))
    for number in range(50):
        asyncio.run(envelopes.read(BEFORE, b'],"user":"%d"}' % number, TALLY))
        assert asyncio.run(envelopes.read(BEFORE, BEHIND, TALLY)) is used
    assert 2 < len(envelopes) < 14


def test_a_single_envelope_cannot_evict_all_others() -> None:
    envelopes = Envelopes(max_bytes=100_000)
    for _ in range(2):
        large = asyncio.run(envelopes.read(BEFORE, b'],"user":"%s"}' % (b"u" * (100_000 // MIN_ENTRIES)), TALLY))
        assert large is not None
    assert len(envelopes) == 0


def test_the_outside_digest_depends_on_the_counted_members_only() -> None:
    texts = [
        '{"tools":[{"n":1}],"model":"m","messages":[]}',
        '{"model":"other","messages":[],"tools":[{"n":1}]}',
        '{"functions":[{"n":1}],"messages":[]}',
        '{"tools":[{"n":2}],"messages":[]}',
        '{"model":"m","messages":[],"user":"u"}',
    ]
    digests = [Envelope(text, scan_members(text, TALLY)).outside_digest for text in texts]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4
    assert digests[-1] == b""
