"""What planning costs: milliseconds from a folded view to the outcome of a pipeline, by length of the history.

Messages are counted beforehand, as they are in the proxy (a count is kept by the message's bytes); everything that a
plan itself counts, it counts with the real tokenizer. What a strategy asks is answered at once by a fixed text. The
window is the one that the history fills up to `trigger`, which is when a plan is made; the second table plans the
same histories for a window of 128k tokens, as when a long conversation is seen for the first time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from time import thread_time

from proxy.endpoints.chat.counter import ChatCounter
from proxy.replaying.report import markdown as table_of
from proxy.tokens.counter import Tokenizers
from strategies import parse, stages
from strategies.core.budget import Budget
from strategies.core.protocol import Strategy
from strategies.core.view import View, fold
from strategies.pipeline import Outcome
from tests.support import planning
from tests.support.histories import agent_history

STRATEGIES = (
    "off", "recent", "mask", "summary", "half-window", "semantic", "rolling", "dynacontext", "extract", "shorten",
    "mask+half-window",
)  # fmt: skip
ROUNDS = (50, 500, 1_000, 2_500, 5_000)
TARGETS = {50: 10.0, 5_000: 200.0}
"""Milliseconds that no strategy may exceed, by rounds."""
LONG_WINDOW = 128_000
RUNS = 7
RECORD = "The user asked for a fix of the parser. The agent read the module, changed it and ran the tests. " * 12
SUMMARY = f"<summary>{RECORD}</summary>"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; `milliseconds` is the median of the runs, `scenario` says which window was planned for."""

    scenario: str
    what: str
    rounds: int
    milliseconds: float

    @property
    def per_round(self) -> float:
        """Microseconds for each round of the history."""
        return self.milliseconds * 1_000 / self.rounds


def measure(rounds: Sequence[int] = ROUNDS, runs: int = RUNS) -> list[Row]:
    """All rows; takes about a minute."""
    counter = Tokenizers().for_model("gpt-4o", ChatCounter)
    rows: list[Row] = []
    for number in rounds:
        transcript = planning.counted(agent_history(number), counter)
        budgets = {"at the trigger": filled_budget(transcript.tokens), "128k window": Budget.of(LONG_WINDOW)}
        for scenario, budget in budgets.items():
            for name in STRATEGIES:
                views = (fold(transcript, (), 0, counter) for _ in range(runs))
                rows.append(Row(scenario, name, number, _milliseconds(pipeline_of(name), views, budget)))
    return rows


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


def pipeline_of(name: str) -> list[Strategy]:
    """The stages of a strategy's name with their default options."""
    pipeline = parse(name)
    if pipeline is None:
        raise ValueError(name)
    return stages(pipeline.names, {}, {})


def planned(pipeline: Sequence[Strategy], view: View, budget: Budget) -> Outcome:
    """The outcome of a pipeline whose questions are answered at once."""
    return planning.planned(pipeline, view, budget, SUMMARY)


def markdown(rows: Sequence[Row]) -> str:
    """A table for each scenario: milliseconds, and what a round costs in the longest."""
    scenarios = dict.fromkeys(row.scenario for row in rows)
    return "\n\n".join(_table(scenario, [row for row in rows if row.scenario == scenario]) for scenario in scenarios)


def _table(scenario: str, rows: Sequence[Row]) -> str:
    lengths = list(dict.fromkeys(row.rounds for row in rows))
    names = list(dict.fromkeys(row.what for row in rows))
    cells = {(row.what, row.rounds): row for row in rows}
    heads = [scenario, *(f"{length:,} rounds" for length in lengths), "µs a round", "target"]
    lines = []
    for name in names:
        of_name = [cells[name, length] for length in lengths]
        milliseconds = [f"{row.milliseconds:.1f}" for row in of_name]
        lines.append([f"`{name}`", *milliseconds, f"{of_name[-1].per_round:.1f}", verdict(of_name)])
    return table_of(" | ".join(heads), lines)


def verdict(rows: Sequence[Row]) -> str:
    """`met`, or the lengths at which the target is missed."""
    missed = [row.rounds for row in rows if row.milliseconds >= TARGETS.get(row.rounds, float("inf"))]
    return "missed at " + " and ".join(f"{each:,}" for each in missed) if missed else "met"
