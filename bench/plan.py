"""What planning costs: milliseconds from a folded view to the outcome of a pipeline, by length of the history.

Messages are counted beforehand, as they are in the proxy (a count is kept by the message's bytes); everything that a
plan itself counts, it counts with the real tokenizer. What a strategy asks is answered at once by a fixed text. The
window is the one that the history fills up to `trigger`, which is when a plan is made; the second half of the table
plans the same histories for a window of 128k tokens, as when a long conversation is seen for the first time.

The last row is such a conversation of prose, half of it the user's, under the default strategy: nothing of its messages
was read before. Its bound is a ratio within the run: ten times the length may take fifteen times as long.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from math import inf
from statistics import median
from time import thread_time
from typing import Any

from proxy.protocols.chat import ChatCounter
from proxy.tokens.counter import Tokenizers
from strategies import DEFAULT, stages
from strategies.core.budget import Budget
from strategies.core.messages import TokenCounter
from strategies.core.protocol import Strategy
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from tests.support import planning
from tests.support.histories import agent_history, long_chat

STRATEGIES = (
    "off", "recent", "mask", "summary", "half-window", "semantic", "rolling", "native", "dynacontext", "extract",
    "shorten", "mask+half-window",
)  # fmt: skip
ROUNDS = (50, 500, 1_000, 2_500, 5_000)
TARGETS = {50: 10.0, 5_000: 200.0}
"""Milliseconds that no strategy may reach, by rounds."""
LONG_WINDOW = 128_000
MOST_GROWTH = 15  # how many times longer ten times the rounds may take
RUNS = 7
RECORD = "The user asked for a fix of the parser. The agent read the module, changed it and ran the tests. " * 12
planned = partial(planning.planned, answer=f"<summary>{RECORD}</summary>")
"""The outcome of a pipeline whose questions are answered at once."""


def measure(rounds: Sequence[int] = ROUNDS, runs: int = RUNS) -> list[dict[str, Any]]:
    """A row for each window and strategy, with medians of the runs; takes about a minute."""
    counter = Tokenizers().for_model("gpt-4o", ChatCounter)
    histories = {number: planning.counted(agent_history(number), counter) for number in rounds}
    rows = []
    for window, name in product(("at the trigger", "128k window"), STRATEGIES):
        spent = {}
        for number, transcript in histories.items():
            budget = Budget.of(LONG_WINDOW) if window == "128k window" else filled_budget(transcript.tokens)
            views = (fold(transcript, (), 0, counter) for _ in range(runs))
            spent[number] = _milliseconds(stages(name.split("+"), {}, {}), views, budget)
        rows.append(row(window, name, spent))
    spent = {number: _of_chat(number, counter) for number in rounds}
    return [*rows, {**row("a long chat, 128k window", DEFAULT, spent), "target": growth(spent)}]


def _of_chat(rounds: int, counter: TokenCounter) -> float:
    """The milliseconds of a plan for a chat of prose of which nothing was read before."""
    chain = planning.counted(long_chat(2 * rounds), counter).chain
    transcript = Transcript.of(message.lean() for message in chain)  # as they are kept
    return _milliseconds(
        stages(DEFAULT.split("+"), {}, {}), (fold(transcript, (), 0, counter),), Budget.of(LONG_WINDOW)
    )


def growth(spent: dict[int, float]) -> str:
    """Whether the longest history takes at most `MOST_GROWTH` times as long as a tenth of it, if that was measured."""
    longest = max(spent)
    times = spent[longest] / spent.get(longest // 10, inf)
    return "met" if times <= MOST_GROWTH else f"missed: {times:.1f} times as long"


def row(window: str, name: str, spent: dict[int, float]) -> dict[str, Any]:
    """Milliseconds by rounds, what a round of the longest history costs, and whether targets are met."""
    longest = max(spent)
    missed = [f"{number:,}" for number, taken in spent.items() if taken >= TARGETS.get(number, inf)]
    return {
        "planned": window,
        "strategy": f"`{name}`",
        **{f"{number:,} rounds": taken for number, taken in spent.items()},
        "µs a round": spent[longest] * 1_000 / longest,
        "target": f"missed at {' and '.join(missed)}" if missed else "met",
    }


def _milliseconds(pipeline: Sequence[Strategy], views: Iterable[View], budget: Budget) -> float:
    """The median time (CPU of this thread) of a plan for each of several fresh views."""
    spent: list[float] = []
    for view in views:
        gc.collect()
        started = thread_time()
        planned(pipeline, view, budget)
        spent.append((thread_time() - started) * 1_000)
    return median(spent)


def filled_budget(tokens: int) -> Budget:
    """The budget of the window in which `tokens` just reach the trigger."""
    usable = tokens / Budget.of(1_000_000).marks.trigger
    window = int(min(usable * 8 / 7, usable + 4_096))
    while Budget.of(window).trigger > tokens:
        window -= 1
    return Budget.of(window)
