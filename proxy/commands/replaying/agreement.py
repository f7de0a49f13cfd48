"""How often the next action stays the same under a view, and what a sample can show of that. Pure.

Of each sampled request a model is asked for the next action three times: twice for the original, which shows the noise,
and once for the view. Requests of one session are not independent, so a session is the unit: it counts by its mean.

The bound is exact for independent values between two known limits, however they are distributed: a bet against every
mean that is too low may multiply its stake by 1/ERROR with a probability of at most ERROR (Ville, Markov). Several bets
share the stake. The boldest has most of it, because it is the best one where nothing differs, as hoped; it then says
the same as the exact bound of a binomial, 1 - ERROR ** (1 / n).
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

ERROR = 0.05
_BETS = {1.0: 0.9, 0.7: 0.025, 0.45: 0.025, 0.25: 0.025, 0.12: 0.025}  # the share of what is at stake, its weight
_STEPS = 40
DEEPEST = 3  # condensations; more are not told apart
_NUMBER = re.compile(r"\d+")
_FIRST_WORD = r'\s*:\s*\[?\s*"?((?:\\.|[^"\\\s,\]}])+)'
LEVELS = {
    "tool": "the same tool, or text for text",
    "action": "the same tool and target; of texts, the share of names and numbers that both have",
    "text": "that share alone, where both are text",
}
Scores = Mapping[str, float | None]


# -- bounds --------------------------------------------------------------------------------------------------------


def upper(values: Sequence[float], least: float = -1.0, most: float = 1.0, error: float = ERROR) -> float:
    """What the mean of independent values from `least` to `most` exceeds with a probability of at most `error`."""
    shares = [(value - least) / (most - least) for value in values]
    low, high = 0.0, 1.0
    for _ in range(_STEPS if shares else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if _gain(shares, middle) >= 1 / error else (middle, high)
    return least + (most - least) * high


def _gain(shares: Sequence[float], supposed: float) -> float:
    """By how much a stake has grown that was bet on a mean below `supposed`."""
    odds = [(supposed - share) / (1 - supposed) for share in shares]
    logs = {bet: sum(log(1 + bet * each) if bet * each > -1 else -inf for each in odds) for bet in _BETS}
    return sum(weight * exp(min(logs[bet], 700.0)) for bet, weight in _BETS.items())


def upper_median(values: Sequence[float], error: float = ERROR) -> float | None:
    """What the median of independent values exceeds with a probability of at most `error`; None for too few of them."""
    count, tail = len(values), 0.0
    for above in range(count + 1):
        tail += comb(count, above) / 2**count
        if tail > error:
            return sorted(values)[count - above] if above else None
    return None


def shown_by(number: int) -> float:
    """The least bound that so many sessions can show: that of not a single difference."""
    return upper([0.0] * number)


# -- actions -------------------------------------------------------------------------------------------------------


class Action(NamedTuple):
    """What a model does next: its first call, or what it says."""

    tool: str = ""  # "" for text
    target: str = ""  # a path, the first word of a command, an id
    names: frozenset[str] = frozenset()  # names and numbers of the text


def action_of(call: ToolCall | None, text: str, tools: Sequence[Any] = ()) -> Action:
    if call is None:
        # A name with a space is a number with the words before it.
        return Action(
            names=frozenset([*(each for each in find_names(text) if " " not in each), *_NUMBER.findall(text)])
        )
    return Action(call.name, _target(call, tools))


def _target(call: ToolCall, tools: Sequence[Any]) -> str:
    """The first word of the argument that the tool requires first, or that comes first; the call may be cut short."""
    offered = [object_at(tool, "function") or tool for tool in tools]
    schemas = [object_at(of, "parameters") or object_at(of, "input_schema") for of in offered if _is(of, call)]
    required = [str(each) for schema in schemas for each in list_at(schema, "required")]
    key = f'"{re.escape(required[0])}"' if required else r'^\s*\{\s*"[^"]*"'
    found = re.search(key + _FIRST_WORD, call.arguments)
    return found[1] if found else next(iter(call.arguments.split()), "")


def _is(tool: Any, call: ToolCall) -> bool:
    return word_at(tool, "name") == call.name


def scores(one: Action, other: Action) -> dict[str, float | None]:
    """How alike two actions are at each of the `LEVELS`, from 0 to 1; None where that does not apply."""
    if one.tool or other.tool:
        return {"tool": float(one.tool == other.tool), "action": float(one[:2] == other[:2]), "text": None}
    every = one.names | other.names
    shared = len(one.names & other.names) / len(every) if every else 1.0
    return {"tool": 1.0, "action": shared, "text": shared}


class Measured(NamedTuple):
    """One request that was asked, as a line of the file of results has it."""

    key: str
    session: str
    strategy: str
    depth: int  # condensations so far in the session
    view: Scores  # how like the original the view's action is, the mean of two comparisons
    noise: Scores  # how alike the two actions of the original are
    seconds: tuple[float, float]  # to the first token: original, view
    tokens: int  # of all three calls, prompts and replies
    money: float  # 0 without prices


def compared(first: Action, second: Action, view: Action) -> tuple[Scores, Scores]:
    """The scores of the view, and those of the original asked twice."""
    one, other = scores(first, view), scores(second, view)
    pairs = {level: [each for each in (one[level], other[level]) if each is not None] for level in LEVELS}
    return {level: mean(found) if found else None for level, found in pairs.items()}, scores(first, second)


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
    """How a view's next action agrees with the original's, as means over sessions."""

    requests: int
    sessions: int
    view: float
    least: float  # what the agreement of the view is at least
    noise: float  # the agreement of the original with itself
    worse: float  # noise less view: what the view costs
    most: float  # what that is at most
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
    views = [mean(view for view, _ in pairs) for pairs in sessions.values()]
    noises = [mean(noise for _, noise in pairs) for pairs in sessions.values()]
    worse = [noise - view for view, noise in zip(views, noises, strict=True)]
    least = 1 - upper([1 - view for view in views], 0.0)
    asked = sum(map(len, sessions.values()))
    bounds = upper(worse), shown_by(len(sessions))
    return Agreement(asked, len(sessions), mean(views), least, mean(noises), mean(worse), *bounds)


def groups(measured: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """What is reported of: each strategy at each level, then its depths, by name and level."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for each in sorted(measured, key=lambda one: (one.strategy, one.depth)):
        for level in LEVELS:
            found.setdefault((each.strategy, level), []).append(each)
        depth = f"{each.depth}" if each.depth < DEEPEST else f"{DEEPEST} or more"
        found.setdefault((f"{each.strategy}, condensed {depth} x", "action"), []).append(each)
    return dict(sorted(found.items(), key=lambda pair: ", condensed " in pair[0][0]))


# -- pairs of runs -------------------------------------------------------------------------------------------------


class Ratio(NamedTuple):
    """A quantity with and without condensing, over pairs of runs."""

    without: float  # totals
    condensed: float
    middle: float  # the median over pairs of the ratio to without
    most: float | None  # what that is at most; None for fewer than five pairs


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """Of pairs (without, with); None where a quantity is not known of every run."""
    if not pairs or any(without <= 0 for without, _ in pairs):
        return None
    shares = [condensed / without for without, condensed in pairs]
    totals = sum(without for without, _ in pairs), sum(condensed for _, condensed in pairs)
    return Ratio(*totals, median(shares), upper_median(shares))
