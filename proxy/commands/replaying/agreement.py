"""How often the next action stays the same under a view, and what a sample can show of that. Pure.

Of a sampled request a model is asked for the next action three times: twice for the original, which shows the noise,
and once for the view. A session counts by its mean, because its requests are not independent of each other.

Bounds are exact for independent values between known limits, whatever their distribution
(docs/decisions/0073-a-bound-is-a-bet-on-sessions.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, exp, inf, log
from statistics import mean, median
from typing import Any, NamedTuple

from proxy.values import list_at, object_at, word_at
from strategies.core.messages import ToolCall
from strategies.core.names import find_names

ERROR, DEEPEST = 0.05, 3  # the chance that a bound is wrong; condensations of which more are not told apart
_BETS = {1.0: 0.9, 0.75: 0.04, 0.5: 0.04, 0.25: 0.02}  # shares of a stake, and their weights
_NUMBER, _FIRST_WORD = re.compile(r"\d+"), r'\s*:\s*\[?\s*"?((?:\\.|[^"\\\s,\]}])+)'
LEVELS = {
    "tool": "the same tool, or text for text",
    "action": "the same tool and target; of texts, the share of names and numbers that both have",
    "text": "that share alone, where both are text",
}
Scores = Mapping[str, float | None]


def upper(values: Sequence[float], least: float = -1.0) -> float:
    """What the mean of independent values from `least` to 1 exceeds with a probability of at most `ERROR`."""
    shares = [(value - least) / (1 - least) for value in values]
    low, high = 0.0, 1.0
    for _ in range(40 if shares else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if _won(shares, middle) >= 1 / ERROR else (middle, high)
    return least + (1 - least) * high


def _won(shares: Sequence[float], supposed: float) -> float:
    """What bets against a mean as large as `supposed` have made of a stake of 1."""
    odds = [(supposed - share) / (1 - supposed) for share in shares]
    grown = {bet: sum(log(1 + bet * each) if bet * each > -1 else -inf for each in odds) for bet in _BETS}
    return sum(weight * exp(min(grown[bet], 700.0)) for bet, weight in _BETS.items())


def upper_median(values: Sequence[float]) -> float | None:
    """What the median of independent values exceeds with a probability of at most `ERROR`; None for too few of them."""
    tails = [sum(comb(len(values), n) for n in range(above + 1)) / 2 ** len(values) for above in range(len(values))]
    above = sum(tail <= ERROR for tail in tails)
    return sorted(values)[-above] if above else None


class Action(NamedTuple):
    """What a model does next: its first call, or what it says."""

    tool: str = ""  # "" for text
    target: str = ""  # a path, the first word of a command, an id
    names: frozenset[str] = frozenset()  # names and numbers of the text


def action_of(call: ToolCall | None, text: str, tools: Sequence[Any] = ()) -> Action:
    """Its target is the first word of the argument that the tool requires first, or that comes first."""
    if call is None:
        names = [each for each in find_names(text) if " " not in each]  # else a number with the words before it
        return Action(names=frozenset([*names, *_NUMBER.findall(text)]))
    offered = [of for tool in tools if word_at(of := object_at(tool, "function") or tool, "name") == call.name]
    schemas = [object_at(of, "parameters") or object_at(of, "input_schema") for of in offered]
    required = [str(each) for schema in schemas for each in list_at(schema, "required")]
    key = f'"{re.escape(required[0])}"' if required else r'^\s*\{\s*"[^"]*"'
    found = re.search(key + _FIRST_WORD, call.arguments)  # not parsed: they may be cut short
    return Action(call.name, found[1] if found else next(iter(call.arguments.split()), ""))


def scores(one: Action, other: Action) -> dict[str, float | None]:
    """How alike two actions are at each of the `LEVELS`, from 0 to 1; None where that does not apply."""
    if one.tool or other.tool:
        return {"tool": float(one.tool == other.tool), "action": float(one[:2] == other[:2]), "text": None}
    every = one.names | other.names
    shared = len(one.names & other.names) / len(every) if every else 1.0
    return {"tool": 1.0, "action": shared, "text": shared}


def compared(first: Action, second: Action, view: Action) -> tuple[Scores, Scores]:
    """How like the original the view's action is, the mean of two comparisons, and how alike those of the original."""
    pairs = {level: (scores(first, view)[level], scores(second, view)[level]) for level in LEVELS}
    known = {level: [each for each in pair if each is not None] for level, pair in pairs.items()}
    return {level: mean(found) if found else None for level, found in known.items()}, scores(first, second)


class Measured(NamedTuple):
    """One request that was asked, as a line of the file of results has it."""

    key: str
    session: str
    strategy: str
    depth: int  # condensations so far in the session
    view: Scores
    noise: Scores
    seconds: Sequence[float]  # to the first token: original, view
    tokens: int  # of all three calls, prompts and replies
    money: float  # 0 without prices


class Needs(NamedTuple):
    """Names of the agent's next messages that stood in the history before a sampled request."""

    used: int
    gone: Sequence[str]  # that the view no longer has
    again: int  # of these, that the recorded agent read again by itself, with all its history


@dataclass
class LiveResults:
    """What was measured at an upstream, and what it cost there: money, 0 without prices, and tokens."""

    url: str
    results: str  # the file
    measured: list[Measured] = field(default_factory=list)
    needs: list[Needs] = field(default_factory=list)
    unmeasurable: list[str] = field(default_factory=list)  # conversations with calls, and without tools
    too_long: int = 0  # requests whose original does not fit
    reused: int = 0  # of `measured`, from the file
    failures: Counter[str] = field(default_factory=Counter)
    stopped: str = ""  # why it ended early
    spent: tuple[float, int] = (0.0, 0)


class Agreement(NamedTuple):
    """How a view's next action agrees with the original's: means over sessions."""

    requests: int
    sessions: int
    view: float
    least: float  # what `view` is at least
    noise: float  # the agreement of the original with itself
    worse: float  # `noise` less `view`
    most: float  # what `worse` is at most
    shows: float  # what it would be at most if nothing had differed


def agreement(measured: Iterable[Measured], level: str) -> Agreement | None:
    """The agreement at a level; None if no request has both figures."""
    sessions: dict[str, list[tuple[float, float]]] = {}
    for each in measured:
        view, noise = each.view[level], each.noise[level]
        if view is not None and noise is not None:
            sessions.setdefault(each.session, []).append((view, noise))
    if not sessions:
        return None
    views, noises = ([mean(pair[at] for pair in pairs) for pairs in sessions.values()] for at in (0, 1))
    worse = [noise - view for view, noise in zip(views, noises, strict=True)]
    least, shows = 1 - upper([1 - view for view in views], 0.0), upper([0.0] * len(sessions))
    asked = sum(map(len, sessions.values()))
    return Agreement(asked, len(sessions), mean(views), least, mean(noises), mean(worse), upper(worse), shows)


def groups(measured: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """What is reported of: each strategy at each level, then its depths, by name and level."""
    found: dict[tuple[str, str], list[Measured]] = {}
    deep: dict[tuple[str, str], list[Measured]] = {}
    for each in sorted(measured, key=lambda one: (one.strategy, one.depth)):
        for level in LEVELS:
            found.setdefault((each.strategy, level), []).append(each)
        depth = f"{each.depth}" if each.depth < DEEPEST else f"{DEEPEST} or more"
        deep.setdefault((f"{each.strategy}, condensed {depth} x", "action"), []).append(each)
    return found | deep


def ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float | None] | None:
    """Totals of pairs (without, with), and the median of their ratios; None where a quantity is not known of all."""
    if not pairs or any(without <= 0 for without, _ in pairs):
        return None
    shares = [condensed / without for without, condensed in pairs]
    without, condensed = (sum(pair[at] for pair in pairs) for at in (0, 1))
    return {"without": without, "with": condensed, "ratio": median(shares), "at_most": upper_median(shares)}
