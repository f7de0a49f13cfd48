"""Hostile requests, counted instead of timed: no turn of the event loop does much, whatever a body holds."""

import asyncio
import base64
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest

from proxy import controls, tool_output_patterns
from proxy.bodies.wire import ClientRequest, read_through_cache
from proxy.errors import ContextLengthExceeded
from proxy.protocols.chat import CHAT_ENDPOINT, ChatCounter, StreamedMessage
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.hidden_calls import NAME
from proxy.protocols.messages import MESSAGES_ENDPOINT
from proxy.protocols.responses import RESPONSES_ENDPOINT
from proxy.services import open_services
from proxy.settings import Settings
from proxy.store import open_store
from proxy.tokens import media
from proxy.tokens.counter import Opaque
from proxy.tokens.media import MAX_NODES
from proxy.turn import drive
from strategies.core.messages import Reader, Role

MOST_STEPS = 120_000
"""Calls in one turn of the loop; a tenth of a microsecond to one microsecond each."""
MOST_CHARACTERS = 16 * 1024
"""Characters that a parser or tokenizer is given in one call on the loop."""
GIVEN = {"raw_decode": "s", "encode_ordinary": "text"}
TEXT = "Never do 7 in /src/a.py, always 12,345.\n"
DENSE = {f"k{each}": each for each in range(20_000)}


def user(content: Any, **members: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **members}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": content}


def nested(depth: int) -> list[Any]:
    content: list[Any] = [{} for _ in range(10_000)]
    for _ in range(depth):
        content = [result(content)]
    return content


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}


SHAPES: dict[str, tuple[Endpoint, dict[str, Any]]] = {
    "a long text": (CHAT_ENDPOINT, {"messages": [user(TEXT * 25_000), assistant("ok"), user("go")]}),
    "one long line": (CHAT_ENDPOINT, {"messages": [user("ab" * 500_000), assistant("ok"), user("go")]}),
    "most messages": (CHAT_ENDPOINT, {"messages": [user("x"), assistant("y")] * 16_000}),
    "most system messages": (
        CHAT_ENDPOINT,
        {"messages": [{"role": "system", "content": "s" * 60}] * 9_998 + [user("x")]},
    ),
    "dense messages": (CHAT_ENDPOINT, {"messages": [user("x", **DENSE), assistant("y")] * 5 + [user("go")]}),
    "many long words json": (
        CHAT_ENDPOINT,
        {"messages": [user("json" * 1_000), assistant("y")] * 500, "response_format": {"type": "json_object"}},
    ),
    "dense members": (CHAT_ENDPOINT, {"messages": [user("x")], **{f"m{each}": DENSE for each in range(5)}}),
    "many parts": (
        CHAT_ENDPOINT,
        {"messages": [user([{"type": "text", "text": "hello"}] * 5_000), assistant("y")] * 5},
    ),
    "many items": (
        RESPONSES_ENDPOINT,
        {
            "input": [
                each
                for at in range(4_900)
                for each in (call(f"c{at}"), {**call(f"c{at}"), "type": "function_call_output", "output": "x"})
            ]
        },
    ),
    "items of no known price": (RESPONSES_ENDPOINT, {"input": [{"type": "web_search_call", "id": "w"}] * 9_000}),
    "nested results": (
        MESSAGES_ENDPOINT,
        {"max_tokens": 9, "messages": [user(nested(100)), assistant("ok")] * 9 + [user("go")]},
    ),
}


@contextmanager
def turns_of_the_loop() -> Iterator[dict[str, int]]:
    """The most calls that one turn of the loop made, and the most characters that one call was given."""
    most, steps = {"steps": 0, "characters": 0}, 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal steps
        name = frame.f_code.co_name
        if event == "call" and name == "_run_once":
            most["steps"], steps = max(most["steps"], steps), 0
        steps += event in ("call", "c_call")
        if event == "call" and name in GIVEN and isinstance(text := frame.f_locals.get(GIVEN[name]), str):
            most["characters"] = max(most["characters"], len(text) - frame.f_locals.get("idx", 0))

    sys.setprofile(note)
    try:
        yield most
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_turn_of_the_loop_works_long_on_a_request(shape: str) -> None:
    endpoint, members = SHAPES[shape]
    data, store = json.dumps({"model": "gpt-4o", **members}).encode(), await open_store("memory://")
    settings = Settings.model_validate({"upstream": {"base_url": "http://localhost/v1"}, "background": {"mode": "off"}})
    async with open_services(settings, store=store) as built:
        with turns_of_the_loop() as most:
            body = await read_through_cache(data, endpoint, built.message_cache, built.bounds, owner="t")
            asked = controls.read([(b"x-condenser-window", b"4000")], None, None)
            try:
                turn = await drive.decide(
                    built, ClientRequest("t", [], body, built.destinations[0], "gpt-4o", False, asked)
                )
                await drive.store(built, turn)
            except ContextLengthExceeded:
                pass
            await asyncio.sleep(0)
    await store.close()
    assert 0 < most["steps"] < MOST_STEPS
    assert most["characters"] <= MOST_CHARACTERS


def calls_of_c(work: Callable[[], object]) -> int:
    calls = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def pages_of(pdf: bytes) -> int | None:
    return media.pages_of(media.ends_of(base64.b64encode(pdf).decode()))


def test_the_nodes_of_a_pdf_are_read_once_within_bounds() -> None:
    tree = b"%PDF-1.4\n1 0 obj <</Type /Pages /Count 3>> endobj\n"
    assert pages_of(tree) == 3
    flood = tree + b"/Type /Pages\n" * 3 * MAX_NODES
    assert calls_of_c(lambda: pages_of(flood)) < 16 * MAX_NODES
    tree = b"%PDF-1.4\n1 0 obj <</Type /Pages /Kids [" + b"2 0 R " * 20_000 + b"] /Count 3>> endobj\n"
    assert pages_of(tree + b"/Type /Page\n" * 5) == 3
    unfinished = b"1 0 obj <</Type /Pages\n" + b"2 0 obj <</Type /Pages /Count 3>> endobj\n"
    assert pages_of(unfinished) == 3


class Looked:
    """A pattern that notes how many bytes or characters it looks at: the most at once, and all together."""

    longest = total = 0

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.pattern = pattern

    def __getattr__(self, name: str) -> Any:
        def call(text: Any, start: int = 0, end: int = sys.maxsize) -> Any:
            found = getattr(self.pattern, name)(text, start, end)
            self.note((found.end() if isinstance(found, re.Match) else min(end, len(text))) - start)
            return found

        return call

    @classmethod
    def note(cls, size: int) -> None:
        cls.longest, cls.total = max(cls.longest, size), cls.total + size


def looked_at(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """What `media` makes patterns and base64 look at, the most at once and all together, and its calls of C."""
    decode = base64.b64decode
    Looked.longest = Looked.total = 0

    def decoded(text: str) -> bytes:
        Looked.note(len(text))
        return decode(text)

    with monkeypatch.context() as patch:
        for name, pattern in list(vars(media).items()):
            if isinstance(pattern, re.Pattern):
                patch.setattr(media, name, Looked(pattern))
        patch.setattr(base64, "b64decode", decoded)
        calls = calls_of_c(work)
    return Looked.longest, Looked.total, calls


BOMB = b"<</Type/ObjStm>> stream\n" + zlib.compress(b"/Type /Pages\n" * 100_000) + b"\nendstream\n"


@pytest.mark.parametrize(
    ("beginning", "pump"),
    [
        (b"%PDF-1.5\n", b"/Type/ObjStm"),
        (b"%PDF-1.5\n", b"/Type/ObjStm stream\n"),
        (b"%PDF-1.5\n", b"/Type/ObjStm stream\nendstream\n"),
        (b"%PDF-1.5\n", BOMB),
        (b"%PDF-1.5\n", b"/Type /Pages /Count 3\n"),
        (b"%PDF-1.5\n", b"/Type /Page\n"),
        (b"%PDF-1.5\n", b"/Type" + b" " * 100_000),
        (b"%PDF-1.5\n", b"1 0 obj <</Type /Pages"),
        (b"\xff\xd8", b"\xff"),
        (b"RIFF0000WEBP", b"VP8X"),
        (b"ID3\x04\0\0\x7f\x7f\x7f\x7f", b"\xff\xfb\x90\x00"),
        (b"ID3", b""),
    ],
)
def test_a_file_is_looked_at_within_the_same_bounds_however_long_it_is(
    beginning: bytes, pump: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = ChatCounter("any", len, media.media_prices("gpt-4o"))

    def looked(size: int) -> tuple[int, int, int]:
        data = base64.b64encode(beginning + pump * (size // max(len(pump), 1))).decode()
        opaque = Opaque()
        return looked_at(lambda: (counter.file(data, opaque), counter.audio(data, "mp3", opaque)), monkeypatch)

    short, (longest, total, calls) = looked(4_000_000), looked(32_000_000)
    assert longest <= 256 * 1024
    assert short[1] - 100 < total < short[1] + 100
    assert (total < 2 * 1024 * 1024, calls < 300_000) == (True, True)


@pytest.mark.parametrize("middle", [b"\0" * 3_000_000, b"8 0 obj <</Type /Page /Parent 2 0 R>> endobj\n" * 90_000])
@pytest.mark.parametrize("is_broken", [False, True])
def test_the_root_at_an_end_of_a_long_pdf_states_its_pages(middle: bytes, is_broken: bool) -> None:
    root = b"2 0 obj <</Type /Pages /Kids [3 0 R] /Count 300>> endobj\n"
    node = b"3 0 obj <</Type /Pages /Parent 2 0 R /Count 7>> endobj\n"
    objects = zlib.compress(
        b"2 0 3 60 <</Type/Page/Parent 3 0 R>> <</Type /Pages /Kids [3 0 R] /Count 300>> <</Count 9>>"
    )
    stream = b"9 0 obj <</Type /ObjStm /N 2 /Filter /FlateDecode>> stream\r\n%s\nendstream endobj\n" % objects
    encode = base64.encodebytes if is_broken else base64.b64encode
    for parts, pages in (
        ([root, node, middle], 300),
        ([middle, node, root], 300),
        ([middle, stream], 300),
        ([node, middle, node], None),
        ([middle], None),
    ):
        assert media.pages_of(media.ends_of(encode(b"%PDF-1.5\n" + b"".join(parts)).decode())) == pages


def test_tool_output_is_looked_for_at_both_ends_of_a_long_text() -> None:
    reader = Reader(*tool_output_patterns())
    inner, end = "x" * 100_000, "(Current directory: /)\nbash-$"
    for text, role in (
        ("Observation: " + inner, Role.TOOL),
        (inner + end, Role.TOOL),
        (inner + "Observation: " + inner, Role.USER),
        (inner + end + inner, Role.USER),
    ):
        assert reader.role(user(text), CHAT_ENDPOINT.dialect) is role


def test_the_calls_of_a_streamed_reply_cost_the_same_each() -> None:
    def add(number: int) -> None:
        message = StreamedMessage()
        for i in range(number):
            message.add_call({"index": i, "id": f"c{i}", "function": {"name": NAME, "arguments": "{}"}})
            assert message.hidden_before_newest == i

    few, many = (calls_of_c(partial(add, number)) for number in (200, 800))
    assert many < 5 * few
