"""The statistics of the next action: exact bounds with sessions as the unit, and what counts as the same action."""

import json
from collections.abc import Callable, Sequence
from random import Random

import pytest

from proxy.commands.replaying.agreement import (
    Action,
    Measured,
    action_of,
    agreement,
    compared,
    groups,
    ratio,
    upper,
    upper_median,
)
from strategies.core.messages import ToolCall

SEEDS = range(100)
SHELL = {"type": "function", "function": {"name": "Bash", "parameters": {"required": ["command"]}}}
READ = {"name": "Read", "input_schema": {"required": ["file_path"]}}


@pytest.mark.parametrize(("sessions", "points"), [(40, 7), (74, 4), (8, 32), (1, 95)])
def test_sessions_without_a_difference_show_what_the_exact_binomial_does(sessions: int, points: int) -> None:
    bound = upper([0.0] * sessions)
    assert round(100 * bound) == points
    assert 1 - 0.05 ** (1 / sessions) < bound < 1 - (0.9 * 0.05) ** (1 / sessions)


def test_nothing_measured_bounds_nothing() -> None:
    assert upper([]) == 1.0
    assert agreement([], "tool") is None


def test_a_bound_is_above_the_mean_and_falls_with_more_sessions() -> None:
    bounds = [upper([0.0, 0.5, -0.5, 0.1] * times) for times in (1, 5, 50)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] > 0.025


Share = Callable[[Random], float]


def even(_: Random) -> float:
    return 0.1


def clustered(dice: Random) -> float:
    """Of one session in ten the view is wrong everywhere: its requests say nothing about each other's session."""
    return float(dice.random() < 0.1)


def measured(seed: int, sessions: int, requests: int, harm: Share, noise: float) -> list[Measured]:
    """What an upstream by rule gives: the view is another action with a known chance, and each call with another."""
    dice, found = Random(seed), []
    for session in range(sessions):
        share = harm(dice)

        def answer(*, is_view: bool, share: float = share) -> Action:
            if dice.random() < noise:
                return Action("read", "elsewhere")
            return Action("read", "src/b" if is_view and dice.random() < share else "src/a")

        for _ in range(requests):
            scores = compared(answer(is_view=False), answer(is_view=False), answer(is_view=True))
            found.append(Measured("", str(session), "extract", 1, *scores, (0.0, 0.0), 0, 0.0))
    return found


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("harm", [even, clustered])
@pytest.mark.parametrize(("sessions", "requests"), [(4, 20), (16, 5), (80, 1)])
def test_the_bounds_cover_what_was_planted(sessions: int, requests: int, harm: Share, noise: float) -> None:
    """Nine of ten are planted to be equal; the bounds hold in at least 90 of 100 seeds."""
    same = (1 - noise) ** 2 * 0.9 + noise**2
    worse = (1 - noise) ** 2 + noise**2 - same
    found = [agreement(measured(seed, sessions, requests, harm, noise), "action") for seed in SEEDS]
    assert sum(each is not None and each.most >= worse for each in found) >= 90
    assert sum(each is not None and each.least <= same for each in found) >= 90


def test_the_bound_is_not_empty() -> None:
    """Where nothing is worse and nothing noisy, 80 sessions exclude five points; noise widens that."""
    quiet, noisy = (agreement(measured(1, 80, 1, lambda _: 0.0, noise), "action") for noise in (0.0, 0.2))
    assert quiet is not None
    assert noisy is not None
    assert quiet.worse == 0
    assert quiet.most == quiet.shows < 0.05
    assert noisy.most > noisy.shows


def test_a_session_with_many_requests_counts_as_one() -> None:
    one = Measured("", "a", "s", 1, {"tool": 0.0}, {"tool": 1.0}, (0.0, 0.0), 0, 0.0)
    good = one._replace(session="b", view={"tool": 1.0})
    found = agreement([one] * 9 + [good], "tool")
    assert found is not None
    assert (found.requests, found.sessions, found.view, found.worse) == (10, 2, 0.5, 0.5)


@pytest.mark.parametrize(
    ("arguments", "tools", "target"),
    [
        ({"description": "Shows it", "command": "git status --short"}, [SHELL], "git"),
        ({"file_path": "/a/b.py", "limit": 3}, [READ], "/a/b.py"),
        ({"cmd": ["ls", "-l"]}, [], "ls"),
        ({"id": 4711}, [], "4711"),
        ({}, [], "{}"),
    ],
)
def test_the_target_of_a_call_is_the_first_word_of_its_main_argument(
    arguments: dict[str, object], tools: Sequence[dict[str, object]], target: str
) -> None:
    name = "Read" if tools == [READ] else "Bash"
    assert action_of(ToolCall("", name, json.dumps(arguments)), "", tools).target == target


def test_a_call_that_was_cut_short_has_its_target_too() -> None:
    whole, cut = ('{"command": "pytest -q tests", "n": 1}', '{"command": "pytest -q')
    assert action_of(ToolCall("", "Bash", cut), "", [SHELL]) == action_of(ToolCall("", "Bash", whole), "", [SHELL])
    assert action_of(ToolCall("", "patch", "*** Begin"), "").target == "***"


def test_texts_are_compared_by_their_names_and_numbers() -> None:
    one, other, none = (
        action_of(None, text) for text in ("Ticket 10042 is in src/a.py.", "10042: see src/b.py!", "Well, hello.")
    )
    view, noise = compared(one, other, none)
    assert noise == {"tool": 1.0, "action": pytest.approx(1 / 3), "text": pytest.approx(1 / 3)}
    assert view == {"tool": 1.0, "action": 0.0, "text": 0.0}
    call = action_of(ToolCall("", "read", "{}"), "")
    assert compared(call, call, none) == (
        {"tool": 0.0, "action": 0.0, "text": None},
        {"tool": 1.0, "action": 1.0, "text": None},
    )
    assert compared(none, none, none)[0]["text"] == 1.0


def test_figures_are_by_strategy_level_and_depth() -> None:
    one = Measured("", "a", "mask", 1, {}, {}, (0.0, 0.0), 0, 0.0)
    found = groups([one, one._replace(depth=7), one._replace(strategy="recent", depth=2)])
    assert [(name, len(each)) for (name, level), each in found.items() if level == "action"] == [
        ("mask", 2),
        ("recent", 1),
        ("mask, condensed 1 x", 1),
        ("mask, condensed 3 or more x", 1),
        ("recent, condensed 2 x", 1),
    ]


def test_the_median_of_five_pairs_is_bounded_by_the_largest() -> None:
    assert upper_median([0.1, 0.2, 0.3, 0.4]) is None
    assert upper_median([0.5, 0.2, 0.3, 0.1, 0.4]) == 0.5
    assert upper_median([float(each) for each in range(20)]) == 14.0


@pytest.mark.parametrize("pairs", [5, 12, 40])
def test_the_bound_of_a_median_covers_it(pairs: int) -> None:
    """A ratio whose logarithm is normal has the median 1."""
    bounds = [upper_median([Random(f"{seed}/{at}").lognormvariate(0, 1) for at in range(pairs)]) for seed in SEEDS]
    assert sum(each is not None and each >= 1 for each in bounds) >= 90


def test_a_ratio_is_that_of_pairs() -> None:
    assert ratio([(10, 5), (20, 30), (10, 4)]) == {"without": 40, "with": 39, "ratio": 0.5, "at_most": None}
    assert ratio([(0, 5)]) is None
