"""What a turn costs a real server over sixty turns: prompt tokens computed anew, cache hits, time to the first token.

    make live ARGS=turns                 all arms, about half an hour on two cores
    make live ARGS="turns recent"        some of them

Each arm has a fresh server of one slot and sends the same conversation, with scripted replies, so that token counts
can be repeated. Only turns from the first one on whose prompt was shortened count. A client that drops its oldest
pairs computes nearly all of its prompt anew at each turn: after twelve of those the arm ends.
"""

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import mean, median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.live.llama import BOUND, MODEL, Message, history, llama
from tests.support.proxy import running_proxy
from tests.support.stage import controls
from tests.support.wire import JSON

WINDOW, WIDE, TURNS, RESERVE, ENOUGH = 2_048, 8_192, 60, 32, 12
_FILLER = " Please look at it again before the meeting, compare it with last month, and tell me what has changed since."


class Arm(NamedTuple):
    name: str
    strategy: str = ""  # "" for the server itself
    memory: str = "off"


DIRECT, TRUNCATION = Arm("direct, window 8,192"), Arm("client truncation")
ARMS = [
    DIRECT,
    TRUNCATION,
    Arm("recent", "recent"),
    Arm("mask+extract, memory off", "mask+extract"),
    Arm("mask+extract, default memory", "mask+extract", "inject"),
    Arm("half-window, default memory", "half-window", "inject"),
    Arm("rolling, default memory", "rolling", "inject"),
]


class Turn(NamedTuple):
    prompt: int
    computed: int
    first: float  # seconds to the first token
    is_short: bool  # whether the prompt has less than the whole history


def conversation() -> list[Message]:
    """Sixty turns and a question; a third of the user's messages are longer."""
    return [
        {**each, "content": each["content"] + _FILLER} if each["role"] == "user" and place % 3 == 1 else each
        for place, each in enumerate(history(TURNS))
    ]


def _ask(base: str, messages: Sequence[Message]) -> tuple[int, int, float, str]:
    body = {"model": MODEL, "messages": messages, "max_tokens": RESERVE, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=BOUND)
    try:
        began, first = time.perf_counter(), 0.0
        timings: dict[str, int] = {}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), dict([*JSON, *controls(session="turns")]))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - began
                timings = json.loads(line[6:]).get("timings") or timings
        return (
            timings["prompt_n"] + timings["cache_n"],
            timings["prompt_n"],
            first,
            response.headers.get("X-Condenser-Branch", "main"),
        )
    finally:
        connection.close()


def _dropped(messages: list[Message], size: Any) -> list[Message]:
    """As a simple client does it: the oldest pairs behind the system message go until the rest fits."""
    kept = list(messages)
    while size(kept) > WINDOW - RESERVE:
        del kept[1:3]
    return kept


def _size(messages: Sequence[Message]) -> int:
    """The server's own tokens of a list, from the letters: 60-turn prompts of this text have 3.9 letters each."""
    return sum(len(each["content"]) for each in messages) * 10 // 36 + 6 * len(messages)


@contextmanager
def _before(arm: Arm) -> Iterator[str]:
    with llama(n_ctx=WIDE if arm is DIRECT else WINDOW, n_parallel=1, n_batch=256, n_ubatch=256) as url:
        if not arm.strategy:
            yield url
            return
        with running_proxy(url, as_shipped=True, strategy=arm.strategy, memory={"default": arm.memory}) as proxy:
            yield proxy.url


def measured(arm: Arm) -> list[Turn]:
    """The turns of an arm, from the first shortened prompt on; of `direct` the same turns as of the others."""
    whole, turns = conversation(), []
    with _before(arm) as url:
        for end in range(2, len(whole) + 1, 2):
            messages = whole[:end]
            sent = _dropped(messages, _size) if arm is TRUNCATION else messages
            prompt, computed, first, branch = _ask(url, sent)
            turns.append(Turn(prompt, computed, first, len(sent) < end or "+" in branch))
            if arm is TRUNCATION and sum(each.is_short for each in turns) == ENOUGH:
                break
    begin = next((place for place, each in enumerate(turns) if each.is_short), len(turns) // 3)
    return turns[begin:]


def row(arm: Arm, turns: Sequence[Turn]) -> str:
    """A row of the table in docs/performance.md."""
    prompt, computed = [each.prompt for each in turns], [each.computed for each in turns]
    first = [each.first for each in turns]
    hits = 1 - sum(computed) / sum(prompt)
    cells = f"{mean(prompt):,.0f} | {mean(computed):,.0f} ({median(computed):,.0f}) | {hits:.0%}"
    return f"| {arm.name} | {len(turns)} | {cells} | {median(first):.1f} / {max(first):.1f} |"


def run(names: Sequence[str]) -> None:
    """Prints the table, a row when its arm has ended."""
    print("| arm | turns | prompt a turn | computed anew, mean (median) | cache hits | first token, median / max s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for arm in ARMS:
        if not names or arm.name.startswith(tuple(names)):
            print(row(arm, measured(arm)), flush=True)
