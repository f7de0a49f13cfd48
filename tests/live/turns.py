"""What a turn costs before a real server over sixty turns, and how many facts of these turns the model still finds.

    make live ARGS=turns                 all arms
    make live ARGS="turns recent"        the arms whose names begin so

Each arm has a fresh server of one slot for each of three conversations. A conversation has sixty turns; in twenty of
them the user states the number of a ticket. Then the user asks for each of these numbers, one after the other. All
replies in the history are scripted, so that the counts of tokens can be repeated; what the model answers to a question
counts if it has the number. After each reply the client waits until the proxy has ended its own calls, as a person
does who reads it.

Turns count from the first one on whose prompt was shortened. A client that drops its oldest pairs computes nearly all
of its prompt anew in each turn: after five of those, it only asks.
"""

import http.client
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean, median
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.live.llama import CLIENT, MODEL, Message, llama
from tests.support.proxy import Proxy, running_proxy
from tests.support.stage import controls
from tests.support.wire import JSON

WINDOW, WIDE, TURNS, FACTS, SEEDS, RESERVE, ENOUGH = 2_048, 8_192, 60, 20, (1, 2, 3), 32, 5
LONG = 600.0  # seconds for a summary, which reads a whole window

_NAMES = [
    "Ada",
    "Bruno",
    "Chen",
    "Dario",
    "Elif",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jamal",
    "Katya",
    "Liam",
    "Mona",
    "Nils",
    "Olga",
    "Pavel",
    "Quinn",
    "Rosa",
    "Selim",
    "Tara",
]
_ABOUT = (
    "the backup job, which fails when the disk is nearly full",
    "the invoice page, which stays empty on old phones",
    "the search box, which does not find names with umlauts",
    "the weekly report, which is sent twice on Mondays",
    "the login form, which forgets the language of the user",
)
_WISHES = (
    "the mobile menu should be faster on old phones",
    "the price list should show the tax of each country",
    "the help page should open in a window of its own",
    "the calendar should start its weeks on Monday",
    "the export should keep the order of the columns",
    "the photos should be smaller on slow connections",
)
_ANSWER = (
    "That is a good point. I have added it to the list for the next release, with a note for the team that owns this "
    "part, and they will say by Friday how much work it is and what else would have to change."
)


class Arm(NamedTuple):
    name: str
    strategy: str = ""  # "" for the server itself
    memory: str = "off"


DIRECT, TRUNCATION = Arm("direct, window 8,192"), Arm("client truncation")
ARMS = [
    DIRECT,
    TRUNCATION,
    Arm("recent, memory off", "recent"),
    Arm("mask+extract, memory off", "mask+extract"),
    Arm("mask+extract, memory (the default)", "mask+extract", "inject"),
    Arm("half-window, memory", "half-window", "inject"),
    Arm("rolling, memory", "rolling", "inject"),
]


class Turn(NamedTuple):
    prompt: int
    computed: int
    first: float  # seconds to the first token
    is_short: bool  # whether the prompt has less than the whole history
    reply: str


@dataclass
class Play:
    """What was measured in the turns of an arm."""

    turns: list[Turn] = field(default_factory=list)
    questions: list[Turn] = field(default_factory=list)
    found: list[int] = field(default_factory=list)  # facts found, by conversation


def conversation(seed: int) -> tuple[list[Message], dict[str, int]]:
    """The messages of sixty turns, and the number of each name's ticket."""
    dice = random.Random(seed)
    numbers = dict(zip(dice.sample(_NAMES, FACTS), dice.sample(range(10_000, 100_000), FACTS), strict=True))
    told = dict(zip(sorted(dice.sample(range(TURNS), FACTS)), numbers.items(), strict=True))
    messages: list[Message] = [{"role": "system", "content": "You are the assistant of a help desk. Be brief."}]
    for turn in range(TURNS):
        if turn in told:
            name, number = told[turn]
            said = f"Please note: the ticket number of {name} is {number}. It is about {dice.choice(_ABOUT)}."
            answer = f"Noted. The ticket number of {name} is {number}."
        else:
            said, answer = f"Question {turn + 1}: {dice.choice(_WISHES)}. What do you think about that?", _ANSWER
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    return messages, numbers


def _ask(base: str, messages: Sequence[Message], whole: int, longest: int) -> Turn:
    """Sends these messages, the rest of a history of `whole` messages, and reads the reply to its end."""
    body = {"model": MODEL, "messages": messages, "max_tokens": longest, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}, "user": CLIENT}
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=LONG)
    try:
        began, first, reply = time.perf_counter(), 0.0, ""
        timings: dict[str, int] = {}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), dict([*JSON, *controls(session="turns")]))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - began
                chunk = json.loads(line[6:])
                timings = chunk.get("timings") or timings
                reply += "".join(each["delta"].get("content") or "" for each in chunk["choices"])
        is_short = len(messages) < whole or "+" in response.headers.get("X-Condenser-Branch", "main")
        return Turn(timings["prompt_n"] + timings["cache_n"], timings["prompt_n"], first, is_short, reply)
    finally:
        connection.close()


def _dropped(messages: list[Message]) -> list[Message]:
    """As a simple client does it: the oldest pairs behind the system message go until the rest fits."""
    kept = list(messages)
    while _size(kept) > WINDOW - RESERVE:
        del kept[1:3]
    return kept


def _size(messages: Sequence[Message]) -> int:
    """The server's own tokens of a list, from the letters: its prompts of this text have 3.9 letters a token."""
    return sum(len(each["content"]) for each in messages) * 10 // 36 + 6 * len(messages)


@contextmanager
def _before(arm: Arm) -> Iterator[tuple[str, Proxy | None]]:
    with llama(n_ctx=WIDE if arm is DIRECT else WINDOW, n_parallel=1, n_batch=256, n_ubatch=256) as url:
        if not arm.strategy:
            yield url, None
            return
        with running_proxy(url, as_shipped=True, strategy=arm.strategy, memory={"default": arm.memory}) as proxy:
            yield proxy.url, proxy


def play(arm: Arm, seed: int, made: Play) -> None:
    """Adds what one conversation measures."""
    messages, numbers = conversation(seed)
    turns: list[Turn] = []
    found = 0
    with _before(arm) as (url, proxy):

        def ask(history: list[Message], longest: int = 1) -> Turn:
            turn = _ask(url, _dropped(history) if arm is TRUNCATION else history, len(history), longest)
            if proxy:
                proxy.quiet(LONG)
            return turn

        for end in range(2, len(messages), 2):
            if arm is TRUNCATION and sum(each.is_short for each in turns) == ENOUGH:
                break
            turns.append(ask(messages[:end]))
        begin = next((place for place, each in enumerate(turns) if each.is_short), len(turns) // 3)
        made.turns += turns[begin:]
        for name in random.Random(-seed).sample(list(numbers), FACTS):
            question = {"role": "user", "content": f"What is the ticket number of {name}?"}
            turn = ask([*messages, question], RESERVE)
            found += str(numbers[name]) in turn.reply
            made.questions.append(turn)
    made.found.append(found)


def row(arm: Arm, play: Play) -> str:
    """A row of the table in docs/internals/performance.md."""
    cells = []
    for turns in (play.turns, play.questions):
        prompt, computed = [each.prompt for each in turns], [each.computed for each in turns]
        hits = 1 - sum(computed) / sum(prompt)
        cells.append(f"{mean(prompt):,.0f} | {mean(computed):,.0f} ({median(computed):,.0f}) | {hits:.0%}")
    first = [each.first for each in play.turns]
    cells.insert(1, f"{median(first):.1f} / {max(first):.1f}")
    return f"| {arm.name} | {len(play.turns)} | {' | '.join(cells)} | {', '.join(map(str, play.found))} |"


def run(names: Sequence[str]) -> None:
    """Prints the table, a row when its arm has ended."""
    heads = "prompt | computed anew, mean (median) | cache hits"
    print(f"| arm | turns | {heads} | first token, median / max s | {heads} | facts found of {FACTS} |")
    print(f"| --- |{' ---: |' * 9}", flush=True)
    for arm in ARMS:
        if not names or arm.name.startswith(tuple(names)):
            made = Play()
            for seed in SEEDS:
                play(arm, seed, made)
            print(row(arm, made), flush=True)
