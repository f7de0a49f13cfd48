"""`python -m eval.memory`: what memory costs and gives, beside the same conversations without it.

Recorded conversations of three kinds are sent turn by turn through the real driver. The bill is that of the prompts
alone, in tokens of full price: messages that the forwarded list has in common with the one before, from its beginning
on, cost a tenth. Then the questions about a dialogue are asked after it, and a question counts where the whole of its
evidence is forwarded. Nothing is kept of a question.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from eval.measure import Figure
from proxy.commands.replaying.measures import ReplayedRequest
from proxy.commands.replaying.play import Player, Playing, open_replay_proxy, request_ends
from proxy.commands.replaying.recorded import Conversation, load
from proxy.commands.replaying.report import markdown
from proxy.settings import Settings
from strategies import DEFAULT
from tests.support.data import LONG, SHORT

WINDOW = 8_192
REQUESTS = 220
"""The maximum number of requests of a conversation that are sent."""
QUESTIONS = 100
"""The maximum number of questions that are asked of a conversation."""
CACHED = 0.1
PRICES = {"input": 1.0, "cached_input": CACHED, "output": 5.0}
"""By which `auto` reckons too: of the model that counts the tokens a cached one costs half of a fresh one."""
EACH = 3
"""Conversations of each kind."""
KINDS = {
    "coding": (LONG, "coding-agent"),
    "service": (LONG, "customer-service-tools"),
    "dialogue, English": (SHORT, "locomo/"),
    "dialogue, Chinese": (SHORT, "crosswoz/"),
}
MODES = {"off": ("off", "off"), "inject": ("inject", "off"), "inject, `auto`": ("inject", "auto")}
"""The modes of memory and of economy."""
HEAD = ("conversations", "memory", "bill", "of off", "prefix broken", "condensed", "questions with evidence")


class Bill(NamedTuple):
    """What the prompts of a conversation cost under one mode of memory, and what its questions reached."""

    kind: str
    memory: str
    requests: int
    tokens: float
    broken: int
    """Requests whose list does not begin with the whole of the one before."""
    condensed: int
    reached: int
    asked: int

    @classmethod
    def of(cls, kind: str, memory: str, requests: Sequence[ReplayedRequest], evidence: Figure) -> Bill:
        before = [0, *(one.message_tokens or 0 for one in requests)]
        return cls(
            kind,
            memory,
            len(requests),
            sum(_price(one) for one in requests),
            sum(one.shared_tokens < of for one, of in zip(requests, before, strict=False)),
            sum(one.condensed for one in requests),
            *evidence,
        )


def _price(request: ReplayedRequest) -> float:
    cached = request.shared_tokens + request.overhead_tokens if request.shared_tokens else 0
    return request.forwarded_tokens - (1 - CACHED) * cached


def chosen(path: Path, part: str, each: int) -> Sequence[Conversation]:
    """The first conversations whose ids have this part."""
    return list(islice((one for one in load(path) if part in one.id), each))


async def bill(kind: str, conversation: Conversation, mode: str, window: int, strategy: str) -> Bill:
    """Plays a conversation under one mode, and asks its questions."""
    memory, economy = MODES[mode]
    priced = {"economy": economy, "models": [{"match": "*", "prices": PRICES}]}
    settings = Settings.model_validate({**priced, "store": {"url": "memory://"}})
    async with open_replay_proxy(settings) as proxy:
        playing = Playing(Player(proxy, "gpt-4o", window), conversation, strategy, mode, memory)
        for end in islice(request_ends(conversation), REQUESTS):
            await playing.send(end)
        questions = [one for one in conversation.questions if max(one.places) < playing.end]
        asked = questions[:: len(questions) // QUESTIONS + 1]
        reached = [(await playing.ask(question))[1] for question in asked]
        return Bill.of(kind, mode, playing.requests, Figure(sum(reached), len(reached)))


def play(kind: str, conversation: Conversation, mode: str, window: int, strategy: str) -> Bill:
    return asyncio.run(bill(kind, conversation, mode, window, strategy))


def table(bills: Sequence[Bill]) -> str:
    """A row for each kind and mode."""
    return markdown(" | ".join(HEAD), list(_rows(bills)), texts=(0, 1))


def _rows(bills: Sequence[Bill]) -> Iterator[list[str]]:
    for kind in dict.fromkeys(one.kind for one in bills):
        off = sum(one.tokens for one in bills if (one.kind, one.memory) == (kind, "off"))
        for memory in dict.fromkeys(one.memory for one in bills):
            of = [one for one in bills if (one.kind, one.memory) == (kind, memory)]
            tokens, requests = sum(one.tokens for one in of), sum(one.requests for one in of)
            reached = Figure(sum(one.reached for one in of), sum(one.asked for one in of))
            yield [
                kind,
                memory,
                f"{tokens / 1000:,.0f}k",
                f"{tokens / off:.2f}",
                f"{sum(one.broken for one in of):,} of {requests:,}",
                f"{sum(one.condensed for one in of):,}",
                f"{reached.percent:.0f}% of {reached.asked:,}" if reached.asked else "-",
            ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.memory", description=__doc__)
    parser.add_argument("--window", type=int, default=WINDOW, metavar="TOKENS", help="by default %(default)s")
    parser.add_argument("--strategy", default=DEFAULT, metavar="NAME", help="by default %(default)s")
    parser.add_argument("--each", type=int, default=EACH, metavar="N", help="conversations of a kind: %(default)s")
    arguments = parser.parse_args(argv)
    played = [
        (kind, one, mode, arguments.window, arguments.strategy)
        for kind, (path, part) in KINDS.items()
        for one in chosen(path, part, arguments.each)
        for mode in MODES
    ]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        print(table(list(pool.map(play, *zip(*played, strict=True)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
