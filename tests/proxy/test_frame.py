"""What stands around messages: read once for the same bytes, kept within bounds, and never taken for something else."""

from __future__ import annotations

import json

import pytest

from proxy.errors import BadRequest
from proxy.frame import LARGEST_SHARE, Frame, Frames
from proxy.nesting import DEEPEST
from proxy.seen import Seen
from proxy.wire import read

BEFORE, BEHIND = b'{"model":"m","messages":[', b'],"tools":[{"type":"function","function":{"name":"f"}}]}'


def body(text: str, **members: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **members}).encode()


def test_the_same_bytes_are_read_once() -> None:
    frames = Frames()
    frame = frames.around(BEFORE, BEHIND)
    assert frame is not None
    assert frame.values == {"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert frames.around(BEFORE, BEHIND) is frame


def test_other_bytes_are_another_frame_though_they_mean_the_same() -> None:
    frames = Frames()
    found = [frames.around(BEFORE, BEHIND), frames.around(BEFORE + b" ", BEHIND), frames.around(b" " + BEFORE, BEHIND)]
    assert len(set(map(id, found))) == len(frames) == 3


def test_the_place_of_the_messages_tells_frames_apart() -> None:
    frames = Frames()
    data = b'{"messages":[],"x":{"messages":[]}}'
    first, second = data.index(b"[") + 1, data.rindex(b"[") + 1
    assert frames.around(data[:first], data[first:]) is not None
    assert frames.around(data[:second], data[second:]) is None


def test_requests_that_differ_in_their_messages_share_what_stands_around_them() -> None:
    seen = Seen()
    one, other = (read(body(text, tools=[{"n": 1}]), seen) for text in ("a", "b"))
    assert one.frame is other.frame
    assert [each.value["content"] for each in (*one.elements, *other.elements)] == ["a", "b"]


def test_a_body_is_spliced_from_its_own_messages_though_its_frame_is_shared() -> None:
    seen = Seen()
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
        (b'{"messages":[', b'],"a":' + b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1) + b"}"),
    ],
)
def test_what_can_not_be_read_is_not_kept(before: bytes, behind: bytes) -> None:
    frames = Frames()
    for _ in range(2):
        with pytest.raises((ValueError, RecursionError, BadRequest)):
            frames.around(before, behind)
    assert len(frames) == 0


@pytest.mark.parametrize("before", [b'{"x":{"messages":[', b'{"messages":{"messages":['])
def test_an_array_that_is_not_the_messages_is_no_place_for_them(before: bytes) -> None:
    frames = Frames()
    assert frames.around(before, b"]}}") is None
    assert len(frames) == 0


def test_the_frame_that_was_left_alone_for_longest_is_forgotten_first() -> None:
    frames = Frames(most_bytes=20_000)
    used = frames.around(BEFORE, BEHIND)
    for number in range(50):
        frames.around(BEFORE, b'],"user":"%d"}' % number)
        assert frames.around(BEFORE, BEHIND) is used
    assert 2 < len(frames) < 14


def test_one_frame_can_not_take_the_room_of_all_others() -> None:
    frames = Frames(most_bytes=100_000)
    for _ in range(2):
        large = frames.around(BEFORE, b'],"user":"%s"}' % (b"u" * (100_000 // LARGEST_SHARE)))
        assert large is not None
    assert len(frames) == 0


def test_what_makes_tokens_besides_messages_is_told_by_its_digest_wherever_it_stands() -> None:
    texts = [
        '{"tools":[{"n":1}],"model":"m","messages":[]}',
        '{"model":"other","messages":[],"tools":[{"n":1}]}',
        '{"functions":[{"n":1}],"messages":[]}',
        '{"tools":[{"n":2}],"messages":[]}',
    ]
    digests = [Frame.of(text).outside for text in texts]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert Frame.of('{"model":"m","messages":[],"user":"u"}').outside == b""
