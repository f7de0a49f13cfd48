"""`semantic`: the mechanism of its source document, with the departures that docs/strategies.md lists."""

from typing import Any

import pytest

from strategies.core.budget import Budget
from strategies.core.pieces import Keep
from strategies.core.protocol import SessionFacts, Triggering
from strategies.core.requirement import Requirement
from strategies.core.view import View
from strategies.semantic import Semantic
from tests.strategies.driving import attempted, condensed, finish, later, plan_of, stages_of, texts
from tests.strategies.invariants import orphans_and_gaps
from tests.support.transcripts import (
    Body,
    agent,
    assistant,
    bodies_of,
    call,
    step,
    system,
    tool,
    transcript_of,
    user,
    view_of,
    words,
)

ROOMY = Budget.of(200_000)


def semantic(**options: Any) -> Semantic:
    (strategy,) = stages_of("semantic", semantic=options)
    assert isinstance(strategy, Semantic)
    return strategy


def after(bodies: list[Body] | View, budget: Budget = ROOMY, **options: Any) -> View:
    view = bodies if isinstance(bodies, View) else view_of(bodies)
    return condensed("semantic", view, budget, **options)


def metadata_of(bodies: list[Body], budget: Budget = ROOMY, **options: Any) -> dict[str, Any]:
    return dict(plan_of(semantic(**options), view_of(bodies), budget).metadata)


def rounds_of(view: View) -> list[int]:
    """The numbers of the steps whose results a view still has."""
    return [int(body["tool_call_id"][1:]) for body in bodies_of(view) if body["role"] == "tool"]


# --- when -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "is_due"), [(49, False), (50, True), (80, True)])
def test_it_is_due_with_more_than_max_size_events(rounds: int, is_due: bool) -> None:
    """A round of one call has two events, and there is the user's message; system messages are none."""
    strategy = semantic()
    assert isinstance(strategy, Triggering)
    assert strategy.is_due(view_of(agent(rounds)), ROOMY) is is_due


def test_max_size_is_an_option() -> None:
    assert semantic(max_size=20).is_due(view_of(agent(10)), ROOMY)
    assert not semantic(max_size=21).is_due(view_of(agent(10)), ROOMY)


def test_many_events_that_may_not_be_forgotten_do_not_make_it_due() -> None:
    calls = [call(f"c{i}") for i in range(150)]
    bodies = [user("go"), assistant(None, *calls), *(tool(f"c{i}") for i in range(150))]
    assert not semantic().is_due(view_of(bodies), ROOMY)


def test_preparation_by_number_of_events_is_not_pressed_for_tokens() -> None:
    outcome = attempted(Requirement.PREPARE, "semantic", view_of(agent(60)), ROOMY)
    assert len(outcome.view.items) == 30


def test_after_a_condensation_it_is_not_due_until_the_view_has_grown() -> None:
    strategy = semantic()
    bodies = agent(60)
    view = after(bodies)
    assert not strategy.is_due(view, ROOMY)
    grown = [*bodies, *(body for i in range(60, 110) for body in step(i))]
    assert strategy.is_due(later(view, transcript_of(grown)), ROOMY)


# --- what is left -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 30),
        ({"max_compression_ratio": 0.2}, 20),
        ({"max_size": 50}, 15),
        ({"keep_first": 5}, 30),
        ({"max_size": 10, "keep_first": 7}, 9),
        ({"max_compression_ratio": 0.01}, 3),
    ],
)
def test_the_target_is_a_share_with_a_floor(options: dict[str, Any], size: int) -> None:
    bodies = agent(100)
    assert metadata_of(bodies, **options)["target_size"] == size
    # Rounds are whole, and the newest one always stays.
    assert size - 1 <= len(after(bodies, **options).items) <= max(size, options.get("keep_first", 1) + 3)


def test_what_semantic_keeps_stays_in_its_order() -> None:
    bodies = agent(60)
    bodies[42:44] = [assistant(None, call("c20", "bash", {"command": "git push"})), tool("c20", "Push completed")]
    view = after(bodies)
    assert texts(view)[0].startswith("Fix the bug")
    assert view.replacement == 1
    kept = rounds_of(view)
    assert 20 in kept
    assert kept == sorted(kept)
    assert kept[-7:] == list(range(53, 60))


def test_the_lowest_scores_are_forgotten_and_of_equals_the_oldest() -> None:
    bodies = agent(60)
    bodies[32:34] = [assistant(None, call("c15", "edit", {"path": "a.py"})), tool("c15", words(30))]
    kept = rounds_of(after(bodies))
    assert [each for each in kept if each < 46] == [15]


def test_without_analysis_the_oldest_are_forgotten() -> None:
    bodies = agent(60)
    bodies[32:34] = [assistant(None, call("c15", "bash", {"command": "git push"})), tool("c15", "Push completed")]
    kept = rounds_of(after(bodies, enable_semantic_analysis=False))
    assert kept == list(range(46, 60))
    assert metadata_of(bodies, enable_semantic_analysis=False)["scored"] is False


def test_a_kept_call_keeps_all_its_results_and_they_are_scored_together() -> None:
    bodies = agent(60)
    both = assistant(None, call("c7", "bash"), call("c7b", "bash"))
    bodies[16:18] = [both, tool("c7", words(400)), tool("c7b", "Traceback: TypeError\nfailed to git push")]
    sent = bodies_of(after(bodies))
    ids = [body.get("tool_call_id") for body in sent if body["role"] == "tool"]
    assert {"c7", "c7b"} <= set(ids)
    assert orphans_and_gaps(sent) == {}


def test_a_question_that_is_kept_keeps_its_answer() -> None:
    bodies: list[Body] = [system(), user("The task.")]
    for i in range(60):
        ask = "Please help me with the error" if i == 9 else "Tell me"
        bodies += [user(f"{ask} {i}."), assistant(f"Answer {i}. {words(20)}")]
    sent = bodies_of(after([*bodies, user("And now?")]))
    place = next(i for i, body in enumerate(sent) if str(body["content"]).startswith("Please help me"))
    assert sent[place + 1]["content"].startswith("Answer 9.")
    roles = [body["role"] for body in sent[3:]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_fresh_messages_count_more() -> None:
    bodies = agent(60)
    seen = ((20, 0.0), (30, 300_000.0))
    view = view_of(bodies)
    strategy = semantic()
    (edit,) = finish(strategy.condense(view, ROOMY, SessionFacts(now=300_100.0, seen=seen))).edits
    kept = [piece.source for piece in edit.pieces if isinstance(piece, Keep)]
    assert set(range(21, 31)) <= set(kept)


@pytest.mark.parametrize("keep_first", [0, 1, 3, 4])
def test_the_first_events_are_counted_from_the_first_user_message(keep_first: int) -> None:
    bodies = agent(60)
    kept = rounds_of(after([assistant("Hello."), *bodies], keep_first=keep_first))
    assert ("Hello." in texts(after([assistant("Hello."), *bodies], keep_first=keep_first))) is False
    assert kept[: keep_first // 2] == list(range(keep_first // 2))


def test_systems_last_user_message_and_newest_round_stay() -> None:
    bodies = agent(60)
    bodies.insert(30, user("Never touch tests/."))
    bodies.insert(60, system("It is noon."))
    sent = bodies_of(after(bodies, max_size=10))
    assert user("Never touch tests/.") in sent
    assert [body["content"] for body in sent if body["role"] == "system"] == ["You help.", "It is noon."]
    assert sent[-2:] == bodies[-2:]


# --- the goal in tokens -----------------------------------------------------------------------------------------


def test_more_is_forgotten_until_the_goal_in_tokens_is_met() -> None:
    bodies = agent(60, size=200)
    budget = Budget.of(16_000).with_goal(3_000)
    view = after(bodies, budget)
    assert view.tokens <= 3_000
    assert len(view.items) < 30
    assert rounds_of(view)[-1] == 59


def test_the_newest_events_go_for_tokens_only_after_all_others() -> None:
    bodies = agent(60, size=200)
    bodies[42:44] = [assistant(None, call("c20", "bash", {"command": "git push"})), tool("c20", "Push completed")]
    kept = rounds_of(after(bodies, Budget.of(16_000).with_goal(2_500)))
    assert 1 < len(kept) < 7
    assert kept == list(range(60 - len(kept), 60))


def test_a_goal_that_cannot_be_met_leaves_the_newest_round() -> None:
    assert rounds_of(after(agent(20), ROOMY.with_goal(0))) == [19]


def test_where_nothing_presses_the_same_share_of_what_there_is_is_left() -> None:
    bodies = agent(12, size=120)
    assert metadata_of(bodies)["target_size"] == 7
    assert len(after(bodies).items) == 6


def test_no_more_events_are_forgotten_than_the_goal_needs() -> None:
    bodies = agent(12, size=200)
    view = after(bodies, Budget.of(8_000).with_goal(2_200))
    assert 1_200 < view.tokens <= 2_200
