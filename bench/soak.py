"""Memory over a while: the three protocols, strategies and kinds of memory, before an upstream that often fails.

Each client has conversations of up to `TURNS` turns, one after the other, and sends about `RATE` requests a second;
one request in sixteen is left at the first bytes of its reply. One answer of the upstream in eight is wrong. A line a
minute goes to standard error: megabytes that are resident, requests, descriptors. What may not grow is the end beside
the value after a third of the time.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from threading import Event, Thread
from time import perf_counter
from typing import Any, NamedTuple

from bench.footprint import resident, row
from bench.processes import Served, condenser, stub

TURNS = 40
RATE = 3.0
WRONG = 8
LEFT = 16
FLAT = 1.05
_TEXT = "the parser reads a token, the test fails in line, never use tabs, ids like AB-1234 and src/app.py stay"


class Kind(NamedTuple):
    """What one client does."""

    protocol: str
    strategy: str
    memory: str
    window: int
    is_named: bool
    words: int = 60


KINDS = (
    Kind("chat", "mask+extract", "inject", 6_000, is_named=True),
    Kind("chat", "half-window", "off", 6_000, is_named=False),
    Kind("chat", "rolling", "inject+tool", 8_000, is_named=True),
    Kind("chat", "dynacontext", "inject", 8_000, is_named=False),
    Kind("chat", "semantic", "tool", 6_000, is_named=True),
    Kind("messages", "mask+extract", "inject", 6_000, is_named=True),
    Kind("messages", "summary", "inject+tool", 8_000, is_named=False),
    Kind("responses", "mask+extract", "inject", 6_000, is_named=False),
    Kind("responses", "recent", "off", 6_000, is_named=True),
    Kind("chat", "mask+summary", "inject", 64_000, is_named=True, words=1_500),
)


def measure(minutes: float = 30.0) -> list[dict[str, Any]]:
    """The figures of one run."""
    with ExitStack() as stack:
        folder, upstream = stack.enter_context(tempfile.TemporaryDirectory()), stack.enter_context(stub(WRONG))
        served = stack.enter_context(condenser(upstream.port, f"sqlite:///{folder}/soak.db"))
        over, done = Event(), [0] * len(KINDS)
        stack.callback(over.set)
        clients = [Thread(target=_talk, args=(n, kind, served.port, over, done)) for n, kind in enumerate(KINDS)]
        for client in clients:
            client.start()
        third = _watched(served, minutes / 3, 0.0, over, done)
        end = _watched(served, minutes, minutes / 3, over, done)
        over.set()
        for client in clients:
            client.join()
    return [
        row("requests", float(sum(done))),
        row("resident after a third, MB", third),
        row("resident at the end, MB", end),
        row("the end beside the third", end / third, FLAT),
    ]


def _watched(served: Served, until: float, since: float, over: Event, done: list[int]) -> float:
    """Waits from one minute to another, with a line for each; the megabytes that are resident then."""
    started = perf_counter() - since * 60
    while (left := until * 60 - (perf_counter() - started)) > 0:
        over.wait(min(left, 60))
        minute, descriptors = (perf_counter() - started) / 60, len(os.listdir(f"/proc/{served.pid}/fd"))
        print(
            f"{minute:5.1f} min {resident(served):6.1f} MB {sum(done):7,} {descriptors:4}", file=sys.stderr, flush=True
        )
    return resident(served)


def _talk(number: int, kind: Kind, port: int, over: Event, done: list[int]) -> None:
    """One conversation after the other until it is over."""
    chance = random.Random(number)
    for conversation in range(1_000_000):
        messages: list[dict[str, Any]] = []
        for turn in range(TURNS):
            if over.wait(chance.random() * 2 / RATE):
                return
            text = " ".join(chance.choices(_TEXT.split(), k=kind.words))
            messages.append({"role": "user", "content": f"{number}.{conversation}.{turn} {text}"})
            _send(kind, f"{number}-{conversation}", messages, port, leaves=done[number] % LEFT == LEFT - 1)
            messages.append({"role": "assistant", "content": f"Done {turn}: {text[: kind.words]}"})
            done[number] += 1


def _send(kind: Kind, session: str, messages: list[dict[str, Any]], port: int, *, leaves: bool) -> None:
    body: dict[str, Any] = {"model": "m", "stream": len(messages) % 4 == 1}
    body |= {"input": messages} if kind.protocol == "responses" else {"messages": messages}
    body |= {"max_tokens": 500} if kind.protocol == "messages" else {}
    path = {"chat": "/v1/chat/completions"}.get(kind.protocol, f"/v1/{kind.protocol}")
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {kind.strategy}",
        "x-condenser-strategy": kind.strategy,
        "x-condenser-memory": kind.memory,
        "x-condenser-window": str(kind.window),
        **({"x-condenser-session": session} if kind.is_named else {}),
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), headers)
        reply = connection.getresponse()
        if not leaves:
            reply.read()
    except (OSError, HTTPException):
        pass  # the upstream has failed, as it should
    finally:
        connection.close()
