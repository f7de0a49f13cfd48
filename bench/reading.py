"""How long reading a body takes: one that is new to the process, and turns of a conversation that it has seen.

`cold` is all of a new body, `longest turn` what the event loop does of it at one go. A `turn` has a new last message,
and a `repetition` is the same body again. Milliseconds, the least of many.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from random import Random
from typing import Any

from proxy.endpoints.chat.endpoint import CHAT_ENDPOINT
from proxy.replaying import table
from proxy.request.message_cache import MessageCache
from proxy.request.scanning import DEFAULT_BOUNDS
from proxy.request.wire import Body, read, read_in_turns

SIZES = ((40, 440), (600, 310), (3_000, 300), (400, 2_600), (10, 104_000))
"""Messages of a body, and the characters of each."""
COLD, WARM = 15, 200
"""How often a reading is measured."""
_WORDS = "the parser returns early when a header is missing, so every caller has to check for None before {x} or [y]"


@dataclass(frozen=True, slots=True)
class Row:
    messages: int
    bytes: int
    cold: float
    longest_turn: float
    turn: float
    repetition: float


def measure() -> list[Row]:
    return [_row(*size) for size in SIZES]


def _row(count: int, length: int) -> Row:
    text = " ".join(Random(0).choices(_WORDS.split(), k=length))[:length]
    history = [{"role": ("user", "assistant")[i % 2], "content": f"{i} {text}"} for i in range(count - 1)]
    bodies = [_body([*history, {"role": "user", "content": f"What is next? {i}"}]) for i in range(WARM)]
    cold = [_steps(read_in_turns(bodies[0], CHAT_ENDPOINT, MessageCache(), DEFAULT_BOUNDS)) for _ in range(COLD)]
    cache = MessageCache()
    for data in bodies[:3]:
        cache.keep(read(data, CHAT_ENDPOINT, cache).units)
    turns = [_milliseconds(partial(read, data, CHAT_ENDPOINT, cache)) for data in bodies]
    same = [_milliseconds(partial(read, bodies[2], CHAT_ENDPOINT, cache)) for _ in range(WARM)]
    return Row(count, len(bodies[0]), min(map(sum, cold)), min(map(max, cold)), min(turns), min(same))


def _body(messages: Sequence[object]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


def _steps(reading: Coroutine[Any, Any, Body]) -> list[float]:
    """The time of each turn that a coroutine takes on the event loop."""
    times: list[float] = []
    is_done = False

    def step() -> None:
        nonlocal is_done
        try:
            reading.send(None)
        except StopIteration:
            is_done = True

    while not is_done:
        times.append(_milliseconds(step))
    return times


def _milliseconds(work: Callable[[], object]) -> float:
    gc.disable()
    started = time.perf_counter()
    work()
    passed = (time.perf_counter() - started) * 1_000
    gc.enable()
    return passed


def markdown(rows: Sequence[Row]) -> str:
    head = "messages | bytes | cold | longest turn | turn | repetition"
    cells = [[f"{value:.3f}" if isinstance(value, float) else f"{value:,}" for value in astuple(row)] for row in rows]
    return table.markdown(head, cells, texts=())
