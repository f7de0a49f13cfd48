"""What a long, hostile text in one request costs all the others.

A message (or a tool description) of a million bytes is sent through the app, alone and beside 50 small requests.
Measured are, in milliseconds, the longest turn of the event loop in processor time of its thread, by how much the loop
was late at most on the clock, which includes what else the machine does, and how long the small requests took. The
upstream is scripted and answers at once. A text is new each time, so that no count is remembered.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import httpx
from fastapi import FastAPI

from proxy.app import create_app
from proxy.settings import Settings

BYTES = 1_000_000
SMALL = 50
REPEATS = 5
TICK = 0.001
WINDOW = 1_200_000
"""Larger than any of the texts is in tokens, and too small for the body's length to prove it."""
_RANDOM = random.Random(7)
_ANSWER = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()


def _drawn(characters: str) -> Callable[[int], str]:
    return lambda count: "".join(_RANDOM.choices(characters, k=count))


def _repeated(unit: str) -> Callable[[int], str]:
    return lambda count: unit * (count // len(unit))


TEXTS: dict[str, tuple[Callable[[int], str], int]] = {
    "one letter": (_repeated("a"), 1),
    "spaces": (_repeated(" "), 1),
    "spaces, then a word": (lambda count: " " * count + "end", 1),
    "line feeds": (_repeated("\n"), 1),
    "equal signs": (_repeated("="), 1),
    "letters": (_drawn("abcdefghijklmnopqrstuvwxyz"), 1),
    "digits": (_drawn("0123456789"), 1),
    "base64": (_drawn("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"), 1),
    "one Han character": (_repeated("字"), 3),
    "Han characters": (_drawn("".join(map(chr, range(0x4E00, 0x9FFF)))), 3),
    "emoji": (_repeated("\U0001f600"), 4),
    "English": (_repeated("The quick brown fox didn't jump; it walked around. "), 1),
}
"""A text of so many characters, and the bytes of each of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One text at one place. `turn` and `late` are medians over the repeats of the longest turn and of the most that
    the loop was late; `took` is the request's own time. `alone` and `beside` are the median and the longest of the
    small requests without and with it."""

    text: str
    place: str
    tokens: int
    took: float
    turn: float
    late: float
    alone: tuple[float, float]
    beside: tuple[float, float]


def measure(repeats: int = REPEATS, size: int = BYTES) -> list[Row]:
    """All rows, of texts of `size` bytes; takes about a minute."""
    return asyncio.run(_measured(repeats, size))


async def _measured(repeats: int, size: int) -> list[Row]:
    settings = Settings(
        store={"url": "memory://"},  # type: ignore[arg-type]
        upstream={"base_url": "http://scripted/v1", "discover": False},  # type: ignore[arg-type]
    )
    app = create_app(settings, transport=httpx.MockTransport(_answered))
    async with app.router.lifespan_context(app):
        await _small_ones(app)
        return [await _row(app, name, place, repeats, size) for place in ("message", "tool") for name in TEXTS]


async def _row(app: FastAPI, name: str, place: str, repeats: int, size: int) -> Row:
    make, width = TEXTS[name]
    turns, lates, tooks, alone, beside, tokens = [], [], [], [], [], 0
    for repeat in range(repeats):
        gc.collect()
        body = _body(f"{repeat}{make(size // width)}", place)
        alone += await _small_ones(app)
        (took, tokens), turn, late = await _watched(_sent(app, body, WINDOW))
        tooks.append(took)
        turns.append(turn)
        lates.append(late)
        again = _body(f"{repeat} {make(size // width)}", place)
        _, times = await asyncio.gather(_sent(app, again, WINDOW), _small_ones(app))
        beside += times
    spread = (median(alone), max(alone)), (median(beside), max(beside))
    return Row(name, place, tokens, median(tooks), median(turns), median(lates), *spread)


async def _small_ones(app: FastAPI) -> list[float]:
    bodies = (_body(f"Question {number}: what now?", "message") for number in range(SMALL))
    return [took for took, _ in await asyncio.gather(*(_sent(app, body, 8_192) for body in bodies))]


async def _watched(work: Any) -> tuple[Any, float, float]:
    """What `work` gives, and of the loop meanwhile the longest turn and the most that it was late, in milliseconds."""
    task, most = asyncio.ensure_future(work), 0.0
    with _turns(asyncio.get_running_loop()) as turns:
        while not task.done():
            started = perf_counter()
            await asyncio.sleep(TICK)
            most = max(most, perf_counter() - started - TICK)
    return await task, max(turns) * 1000, most * 1000


@contextmanager
def _turns(loop: Any) -> Iterator[list[float]]:
    """Notes how many seconds of processor time each turn of the loop takes."""
    turns, run_once = [0.0], loop._run_once  # noqa: SLF001 - the loop tells nobody of its turns

    def noted() -> None:
        started = thread_time()
        run_once()
        turns.append(thread_time() - started)

    loop._run_once = noted  # noqa: SLF001
    try:
        yield turns
    finally:
        del loop._run_once  # noqa: SLF001


async def _sent(app: FastAPI, body: bytes, window: int) -> tuple[float, int]:
    """Milliseconds that a request took, and its tokens; fails where the answer is not 200."""
    headers = [
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer sk-bench"),
        (b"x-condenser-window", str(window).encode()),
        (b"x-condenser-no-store", b"true"),
    ]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/chat/completions", "query_string": b"",
        "raw_path": b"/v1/chat/completions", "root_path": "", "scheme": "http", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1), "app": app,
    }  # fmt: skip
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    starts: list[Any] = []

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            starts.append(message)

    started = perf_counter()
    await app(scope, receive, send)
    assert starts[0]["status"] == 200, starts
    tokens = dict(starts[0]["headers"])[b"x-condenser-tokens-before"]
    return (perf_counter() - started) * 1000, int(tokens)


def _body(text: str, place: str) -> bytes:
    tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}
    said = text if place == "message" else "Go on."
    tools = {"tools": [tool]} if place == "tool" else {}
    request = {"model": "gpt-4o", "messages": [{"role": "user", "content": said}], **tools}
    return json.dumps(request, ensure_ascii=False).encode()


def _answered(_request: httpx.Request) -> httpx.Response:
    head = {"content-type": "application/json", "content-length": str(len(_ANSWER))}
    return httpx.Response(200, headers=head, stream=httpx.ByteStream(_ANSWER))


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    head = "| text of 1 MB | in a | tokens | takes | longest turn | loop late | small requests alone | beside it |"
    lines = [
        f"| {row.text} | {row.place} | {row.tokens:,} | {row.took:.0f} ms | {row.turn:.1f} ms | {row.late:.1f} ms "
        f"| {row.alone[0]:.0f}, at most {row.alone[1]:.0f} ms | {row.beside[0]:.0f}, at most {row.beside[1]:.0f} ms |"
        for row in rows
    ]
    return "\n".join(["## One long text", "", head, "|---|---|---|---|---|---|---|---|", *lines, ""])


def document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [asdict(row) for row in rows]
