"""What one request may cost: processor time of a proxy of its own, and how long others wait for it meanwhile.

Each request condenses in a small window, with memory on; its client has a key that nobody has checked. The texts are
made of three thousand words, or characters, so that they are no prose that a cache knows, and pack to two fifths.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from http.client import HTTPConnection
from random import Random
from threading import Event, Thread
from time import perf_counter
from typing import Any

from bench.processes import condenser, stub

WINDOW = 8_000
LONG = 64_000  # characters of a message
_CHANCE = Random(3)
_WORDS = ["".join(_CHANCE.choices("abcdefghijklmnopqrstuvwxyz", k=_CHANCE.randint(3, 9))) for _ in range(3_000)]
_FIRST = [{"role": "user", "content": "Hello. " * 9_000}]  # with it the tokenizer is loaded
_CHARACTERS = [chr(0x4E00 + 7 * n) for n in range(500)]


def sentences(seed: int, size: int = LONG) -> str:
    chance, said = Random(seed), ""
    while len(said) < size:
        said += " ".join(chance.choices(_WORDS, k=chance.randint(6, 18))).capitalize() + ". "
    return said


def characters(seed: int, size: int = LONG // 3) -> str:
    chance = Random(seed)
    return "".join("".join(chance.choices(_CHARACTERS, k=40)) + "。" for _ in range(size // 41))


def talk(texts: Iterator[str]) -> Iterator[dict[str, Any]]:
    for text in texts:
        yield {"role": "user", "content": text}
        yield {"role": "assistant", "content": "Done."}


def results(texts: Iterator[str]) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "content": "Go."}
    for number, text in enumerate(texts):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "run", "arguments": f'{{"n": {number}}}'}}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": f"c{number}", "content": text}
    yield {"role": "assistant", "content": "Done."}


REQUESTS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "32 messages of 64,000 characters": lambda: talk(map(sentences, range(32))),
    "32 messages of 21,000 Chinese characters": lambda: talk(map(characters, range(32))),
    "480 messages of 64,000 characters": lambda: talk(map(sentences, range(480))),
    "20,000 messages of 600 characters": lambda: talk(sentences(n, 600) for n in range(20_000)),
    "480 results of 64,000 characters": lambda: results(map(sentences, range(480))),
}


def measure() -> list[dict[str, Any]]:
    """A row for each request; about two minutes."""
    return [_row(name, [*make(), *talk(iter(["So?"])), *talk(iter(["And?"]))][:-1]) for name, make in REQUESTS.items()]


def _row(name: str, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    body = json.dumps({"model": "m", "messages": messages}, ensure_ascii=False).encode()
    wire, waits, over = gzip.compress(body), [0.0], Event()
    with stub() as upstream, condenser(upstream.port, "memory://") as served:
        _post(served.port, gzip.compress(json.dumps({"model": "m", "messages": _FIRST}).encode()))
        asking = Thread(target=_ask, args=(served.port, over, waits))
        asking.start()
        before = served.cpu
        status = _post(served.port, wire)
        spent = served.cpu - before
        over.set()
        asking.join()
    return {
        "request": name,
        "MB on the wire": len(wire) / 1e6,
        "MB": len(body) / 1e6,
        "status": status,
        "s": spent,
        "/livez waits, ms": 1_000 * waits[0],
    }


def _post(port: int, wire: bytes) -> int:
    headers = {"content-type": "application/json", "content-encoding": "gzip", "authorization": "Bearer sk-nobody"}
    controls = {"x-condenser-window": str(WINDOW), "x-condenser-strategy": "mask+extract"}
    with closing(HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        connection.request("POST", "/v1/chat/completions", wire, headers | controls)
        reply = connection.getresponse()
        reply.read()
        return reply.status


def _ask(port: int, over: Event, waits: list[float]) -> None:
    while not over.wait(0.01):
        began = perf_counter()
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", "/livez")
            connection.getresponse().read()
        waits[0] = max(waits[0], perf_counter() - began)
