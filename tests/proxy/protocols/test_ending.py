"""A reply is recognised by its ending, in whatever form it came and is sent back."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from proxy.protocols.chat import TEXT_PLACES
from proxy.protocols.replies import ENDING_LENGTH, ending, ending_in

THOUGHT = "<think>" + "The wall gives shade at noon. " * 4 + "</think>\n\n"
ending_of = partial(ending_in, places=TEXT_PLACES)
TEXT = "First I look at the beds. " * 8 + "Bed 12: tomatoes, in the shade of the wall."


def completion(text: str | None, *, choices: int = 1) -> bytes:
    said = [{"index": index, "message": {"role": "assistant", "content": text}} for index in range(choices)]
    return json.dumps({"object": "chat.completion", "choices": said, "usage": {"prompt_tokens": 9}}).encode()


def event(delta: dict[str, Any], index: int = 0) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": index, "delta": delta}]}).encode() + b"\n\n"


def stream(text: str, piece: int = 4) -> bytes:
    pieces = [event({"content": text[at : at + piece]}) for at in range(0, len(text), piece)]
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 9}}\n\n'
    return b"".join([event({"role": "assistant", "content": ""}), *pieces, event({}), usage, b"data: [DONE]\n\n"])


@pytest.mark.parametrize("text", ["Yes.", TEXT, "  Ja,\nnatürlich: 鸡蛋 \n", "x" * ENDING_LENGTH])
def test_a_reply_ends_alike_in_one_piece_streamed_and_sent_back(text: str) -> None:
    assert ending_of(completion(text), is_complete=True) == ending(text) != ""
    for piece in (1, 4, 1_000):
        assert ending_of(stream(text, piece), is_complete=True) == ending(text)
    assert ending_of(stream(text).replace(b"\n", b"\r\n"), is_complete=True) == ending(text)


def test_what_clients_do_to_a_reply_does_not_change_its_end() -> None:
    assert ending(THOUGHT + TEXT) == ending(TEXT) == ending(f" {TEXT}\n") == ending(TEXT.replace(". ", ".\n"))
    assert ending(TEXT) != ending(TEXT + " And peas.")


@pytest.mark.parametrize("length", range(1, ENDING_LENGTH + 40, 3))
def test_thinking_does_not_change_the_ending_however_short_the_text(length: int) -> None:
    said = TEXT[-length:]
    for data in (completion(THOUGHT + said), stream(THOUGHT + said, 1), stream(THOUGHT + said, 7)):
        assert ending_of(data, is_complete=True) == ending(said)
        assert ending_of(data[1:], is_complete=False) in ("", ending(said))


def test_only_texts_count_of_the_last_bytes() -> None:
    data = stream(TEXT)
    for cut in (1, len(data) // 4):
        assert ending_of(data[cut:], is_complete=False) == ending(TEXT)
    twice = content_event("b").replace(b'"content": "b"', b'"content": "b", "content": "c"')
    assert ending_of(twice + content_event("a"), is_complete=True) == ending("ca")
    thinking = b"".join(event({"reasoning_content": "hm"}) for _ in range(50))
    data = event({"content": "Let us see: "}) + thinking + event({"content": "Yes."})
    assert ending_of(data, is_complete=True) == ending("Let us see: Yes.")
    assert ending_of(data[5:], is_complete=False) == ""
    assert ending_of(completion(TEXT)[-200:], is_complete=False) == ""


def content_event(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, **more}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


QUOTED = 'He said: "no", "content": "x\\y" \u00fc {"content": "z"} ' * 3


@pytest.mark.parametrize(
    "more",
    [
        lambda _: {},
        lambda at: {"padding": "x" * (at % 7)},
        lambda at: {"padding": "x" * (at // 9)},
        lambda _: {"logprobs": {"content": [{"token": "z"}]}},
        lambda at: {"message": {"content": f"not {at}"}},
        lambda at: {"index": at // 20} if at > 20 else {},
    ],
    ids=["alike", "padded", "padded now and then", "with other content", "with another text", "of several choices"],
)
def test_events_with_more_than_text_are_read_alike(more: Callable[[int], dict[str, Any]]) -> None:
    events = [content_event(letter, **more(at)) for at, letter in enumerate(QUOTED)]
    several = "index" in more(len(events) - 1)
    assert ending_of(b"".join(events), is_complete=True) == ("" if several else ending(QUOTED))


def test_a_reply_without_a_single_text_has_no_ending() -> None:
    broken = b"", b"<html>busy</html>", b'{"choices": 5}', b'["choices"]', b"data: {broken\n\ndata: [DONE]\n\n"
    streams = event({"content": "a"}) + event({"content": "b"}, index=1), event({"tool_calls": [{"index": 0}]})
    for data in (*broken, b'data: "text"\n\n', completion(None), completion(TEXT, choices=2), *streams):
        assert ending_of(data, is_complete=True) == ""
