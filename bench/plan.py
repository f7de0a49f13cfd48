"""What planning costs: milliseconds from a folded view to the outcome of a pipeline, by length of the history.

Messages are counted beforehand, as they are in the proxy (a count is kept by the message's bytes); everything that a
plan itself counts, it counts with the real tokenizer. What a strategy asks is answered at once by a fixed text. The
window is the one that the history fills up to `trigger`, which is when a plan is made; the second table plans the
same histories for a window of 128k tokens, as when a long conversation is seen for the first time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import thread_time
from typing import Any

from bench.history import agent_history
from proxy.replaying import planning, table
from proxy.tokens.counter import Tokenizers
from strategies import parse, stages
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation
from strategies.core.messages import Counter
from strategies.core.plan import head_pieces
from strategies.core.protocol import Strategy
from strategies.core.replay import replay
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.pipeline import Outcome

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
    tokens_before: int
    tokens_after: int

    @property
    def per_round(self) -> float:
        """Microseconds for each round of the history."""
        return self.milliseconds * 1_000 / self.rounds


def measure(rounds: Sequence[int] = ROUNDS, runs: int = RUNS) -> list[Row]:
    """All rows; takes about a minute."""
    counter = Tokenizers().for_model("gpt-4o")
    rows: list[Row] = []
    for number in rounds:
        transcript = planning.counted(agent_history(number), counter)
        rows.extend(_rows("at the trigger", transcript, number, filled_budget(transcript.tokens), counter, runs))
        rows.extend(_rows("128k window", transcript, number, Budget.of(LONG_WINDOW), counter, runs))
    return rows


def _rows(
    scenario: str, transcript: Transcript, rounds: int, budget: Budget, counter: Counter, runs: int
) -> Iterator[Row]:
    for name in STRATEGIES:
        pipeline = pipeline_of(name)
        work = partial(planned, pipeline, budget=budget)
        milliseconds, outcome = timed(lambda: fold(transcript, (), 0, counter), work, runs)
        yield Row(scenario, name, rounds, milliseconds, transcript.tokens, outcome.view.tokens)
    view = planned(pipeline_of("mask+half-window"), fold(transcript, (), 0, counter), budget).view
    milliseconds, folded = timed(lambda: None, lambda _: fold(transcript, (), 0, counter), runs)
    yield Row(scenario, "(fold)", rounds, milliseconds, transcript.tokens, folded.tokens)
    standing = [condensation(view, budget)] if view.covered else []
    milliseconds, again = timed(
        lambda: None,
        lambda _: replay(transcript, standing, 0, counter, budget, standing[0].id if standing else ""),
        runs,
    )
    yield Row(scenario, "(replay)", rounds, milliseconds, transcript.tokens, again.view.tokens)


def timed(prepared: Callable[[], Any], work: Callable[[Any], Any], runs: int) -> tuple[float, Any]:
    """Median milliseconds (CPU time of this thread) of `work` on something fresh from `prepared`, and its result."""
    spent: list[float] = []
    result = None
    for _ in range(runs):
        fresh = prepared()
        gc.collect()
        started = thread_time()
        result = work(fresh)
        spent.append((thread_time() - started) * 1_000)
    return median(spent), result


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


def condensation(view: View, budget: Budget) -> Condensation:
    """The record of a view, as the driver makes it."""
    digest = view.transcript.digests[view.covered - 1]
    return Condensation(
        id="c1", digest=digest, covered=view.covered, depth=1, pieces=head_pieces(view), window=budget.window,
        strategy="mask+half-window", requirement="hard", trigger="context_limit", tokens_before=view.transcript.tokens,
        tokens_after=view.tokens, created_at=0.0,
    )  # fmt: skip


def markdown(rows: Sequence[Row]) -> str:
    """A table for each scenario: milliseconds, and how the cost of a round grows with the length."""
    scenarios = dict.fromkeys(row.scenario for row in rows)
    return "\n\n".join(_table(scenario, [row for row in rows if row.scenario == scenario]) for scenario in scenarios)


def _table(scenario: str, rows: Sequence[Row]) -> str:
    lengths = list(dict.fromkeys(row.rounds for row in rows))
    names = list(dict.fromkeys(row.what for row in rows))
    cells = {(row.what, row.rounds): row for row in rows}
    heads = [scenario, *(f"{length:,} rounds" for length in lengths), "µs a round", "5,000 : 500", "target"]
    lines = []
    for name in names:
        of_name = [cells[name, length] for length in lengths]
        milliseconds = [f"{row.milliseconds:.1f}" for row in of_name]
        lines.append([f"`{name}`", *milliseconds, f"{of_name[-1].per_round:.1f}", growth(of_name), verdict(of_name)])
    return table.markdown(" | ".join(heads), lines)


def growth(rows: Sequence[Row]) -> str:
    """The cost of a round at 5,000 rounds over that at 500: about 1 where cost grows with the length."""
    cost = {row.rounds: row.per_round for row in rows}
    if 500 not in cost or 5_000 not in cost or not cost[500]:
        return "-"
    return f"{cost[5_000] / cost[500]:.2f}"


def verdict(rows: Sequence[Row]) -> str:
    """`met`, or the lengths at which the target is missed."""
    missed = [row.rounds for row in rows if row.milliseconds >= TARGETS.get(row.rounds, float("inf"))]
    return "missed at " + " and ".join(f"{each:,}" for each in missed) if missed else "met"
