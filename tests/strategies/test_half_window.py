"""`half-window`: the test plan of its source document, with the departures that docs/strategies.md lists, and more."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.core.effects import SUMMARIZER, Ask
from strategies.core.errors import Declined
from strategies.core.protocol import SessionFacts
from strategies.core.replacement import previous_text
from strategies.core.summary import TAG_TOKENS
from strategies.core.view import View
from strategies.half_window import HalfWindowOptions, RoundCursor, SplitDecision, collect_rounds, decide
from strategies.prompts import prompt_digest
from tests.strategies.driving import condensed, later, plan_of, questions, stages_of, texts
from tests.support.transcripts import (
    Body,
    agent,
    assistant,
    bodies_of,
    call,
    chat,
    step,
    tool,
    transcript_of,
    user,
    view_of,
    words,
)

ROOMY = Budget.of(100_000).with_goal(50_000)
OPTIONS = HalfWindowOptions()


def turn(number: int, rounds: int, size: int = 20) -> list[Body]:
    """A user message and its rounds."""
    steps = [body for r in range(rounds) for body in step(number * 100 + r, size)]
    return [user(f"Turn {number}"), *steps]


def shaped(rounds: Sequence[int], *, active: bool = False) -> list[Body]:
    """Turns of so many rounds each, the last of which is finished unless it is `active`."""
    bodies = [body for number, count in enumerate(rounds) for body in turn(number, count)]
    return bodies if active else [*bodies, user("?")]


TEN_ROUNDS = [*turn(1, 3), *turn(2, 4), *turn(3, 3)]


def decision_for(view: View, options: HalfWindowOptions = OPTIONS) -> SplitDecision:
    return decide(view, collect_rounds(view), options)


def places(cursors: list[RoundCursor]) -> list[tuple[str, int, int]]:
    return [("active" if cursor.is_active else "history", cursor.turn, cursor.round) for cursor in cursors]


def half(bodies: list[Body], budget: Budget = ROOMY, **options: Any) -> View:
    return condensed("half-window", view_of(bodies), budget, **options)


def metadata_of(bodies: list[Body] | View, budget: Budget = ROOMY, **options: Any) -> dict[str, Any]:
    """The telemetry of a plan."""
    view = bodies if isinstance(bodies, View) else view_of(bodies)
    (strategy,) = stages_of("half-window", half_window=options)
    return dict(plan_of(strategy, view, budget).metadata)


def summarized(bodies: list[Body], then: list[Body]) -> View:
    """A view in which `bodies` were condensed before `then` was added."""
    return later(half(bodies), transcript_of([*bodies, *then]))


# --- collectRounds ----------------------------------------------------------------------------------------------


def test_rounds_are_collected_in_chronological_order() -> None:
    cursors = collect_rounds(view_of([*turn(1, 2), *turn(2, 1), *turn(3, 2)]))
    assert places(cursors) == [
        ("history", 0, 0), ("history", 0, 1), ("history", 1, 0), ("active", -1, 0), ("active", -1, 1),
    ]  # fmt: skip
    starts = [cursor.span.start for cursor in cursors]
    assert starts == sorted(starts) == [1, 3, 6, 9, 11]


def test_only_rounds_behind_the_newest_summary_are_collected() -> None:
    view = summarized(TEN_ROUNDS, turn(4, 2))
    behind = collect_rounds(view)
    assert view.replacement == 1
    assert all(cursor.span.start > 1 for cursor in behind)
    assert len(behind) == 7 + 2


def test_an_empty_history_has_active_rounds_only() -> None:
    assert places(collect_rounds(view_of(agent(3)))) == [("active", -1, 0), ("active", -1, 1), ("active", -1, 2)]


def test_without_active_rounds_there_is_only_history() -> None:
    assert places(collect_rounds(view_of(chat(2)))) == [("history", 0, 0), ("history", 1, 0)]


def test_nothing_has_no_rounds() -> None:
    assert collect_rounds(view_of([user("a")])) == []


# --- calculateHalfWindowSplit -----------------------------------------------------------------------------------


def test_the_least_number_of_rounds_is_an_option() -> None:
    assert decision_for(view_of(agent(6)), HalfWindowOptions(min_rounds=7)).level == 1
    assert decision_for(view_of(agent(2)), HalfWindowOptions(min_rounds=2, min_overlap=0)).level == 0


def test_an_overlap_that_leaves_nothing_falls_back() -> None:
    assert decision_for(view_of(agent(6)), HalfWindowOptions(min_overlap=5)).level == 1


# --- adjustToTurnBoundary ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "options", "kept"),
    [((5, 1), {}, 2), ((6,), {}, 2), ((10,), {"min_overlap": 3}, 4), ((6,), {"min_overlap": 0}, 1)],
)
def test_a_turn_is_split_for_want_of_boundaries(rounds: tuple[int, ...], options: dict[str, Any], kept: int) -> None:
    telemetry = metadata_of(shaped(rounds), ROOMY, **options)
    assert telemetry["keptRoundCount"] == kept
    assert telemetry["splitStrategy"] == telemetry["boundaryAdjustmentType"] == "inside-turn"


def test_a_finished_turn_is_split_where_only_that_meets_the_goal() -> None:
    bodies = [*turn(1, 2, 100), *turn(2, 6, 100), user("?")]
    telemetry = metadata_of(bodies, Budget.of(3_000).with_goal(900))
    assert telemetry["splitPivotRoundIndex"] > 0
    assert telemetry["splitStrategy"] == telemetry["boundaryAdjustmentType"] == "inside-turn"


def test_a_split_moved_to_a_boundary_is_outside_turns() -> None:
    telemetry = metadata_of(shaped((5, 1)), ROOMY.with_goal(0), min_overlap=0)
    assert (telemetry["summarizedRoundCount"], telemetry["keptRoundCount"]) == (5, 1)
    assert (telemetry["splitStrategy"], telemetry["boundaryAdjustmentType"]) == (
        "turn-boundary",
        "adjusted-to-turn-end",
    )


def test_a_split_inside_the_open_turn_says_so() -> None:
    telemetry = metadata_of([*turn(1, 3), *turn(2, 3)], ROOMY.with_goal(0), min_overlap=0)
    assert (telemetry["keptRoundCount"], telemetry["splitStrategy"]) == (1, "active-only")


def documents_split(places: list[int], overlap: int) -> tuple[int, str]:
    """`calculateHalfWindowSplit` and `adjustToTurnBoundary` of the source document, line by line."""
    split = len(places) - max(overlap + 1, -(-len(places) // 2))
    if places[split] != places[split - 1]:
        return split, "exact"
    adjusted = split
    while adjusted > 0 and places[adjusted - 1] == places[split]:
        adjusted -= 1
    if adjusted > 0:
        return adjusted, "adjusted-to-turn-start"
    adjusted = split
    while adjusted < len(places) - overlap - 1:
        adjusted += 1
        if places[adjusted] != places[adjusted - 1]:
            break
    return adjusted, "adjusted-to-turn-end"


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.booleans(), st.integers(0, 4))
def test_any_shape_is_split_where_the_document_splits_it(rounds: list[int], active: bool, overlap: int) -> None:
    """Except between the rounds of the turn that goes on, which are parted where half falls."""
    cursors = collect_rounds(view_of(shaped(rounds, active=active)))
    assume(len(cursors) >= max(4, overlap + 2))
    decision = decision_for(view_of(shaped(rounds, active=active)), HalfWindowOptions(min_overlap=overlap))
    if decision.strategy == "active-only":
        assert (len(cursors) - decision.first_kept, decision.boundary) == (
            max(overlap + 1, -(-len(cursors) // 2)),
            "exact",
        )
        return
    index, boundary = documents_split([cursor.turn for cursor in cursors], overlap)
    inside = cursors[index].round > 0
    assert decision.first_kept == index
    assert (decision.strategy, decision.boundary) == (
        ("inside-turn", "inside-turn") if inside else ("turn-boundary", boundary)
    )
    assert len(cursors) - index > overlap


# --- getProps: the half window itself ---------------------------------------------------------------------------


def test_three_rounds_fall_back_to_all_but_the_last() -> None:
    telemetry = metadata_of(agent(3))
    assert telemetry["compressionMode"] == "fallback"
    assert telemetry["fallbackLevel"] == 1
    assert telemetry["usedFallback"]
    assert telemetry["compressionFallbackReason"] == "not-enough-rounds"
    assert (telemetry["summarizedRoundCount"], telemetry["keptRoundCount"]) == (2, 1)
    assert [text.split("\n")[0] for text in texts(half(agent(3)))[3:]] == ["2"]


# --- fallback levels --------------------------------------------------------------------------------------------


def test_level_2_too_few_rounds_behind_a_summary_change_nothing() -> None:
    bodies = agent(6)
    view = later(half(bodies), transcript_of(bodies))
    with pytest.raises(Declined) as declined:
        condensed("half-window", view, ROOMY)
    assert declined.value.reason == "summary-boundary"


# --- the goal ---------------------------------------------------------------------------------------------------


def test_half_is_enough_where_it_meets_the_goal() -> None:
    assert metadata_of(agent(20, size=100), Budget.of(4_000))["summarizedRoundCount"] == 10


def test_a_split_moves_on_until_the_goal_is_met() -> None:
    bodies, budget = agent(20, size=100), Budget.of(3_000).with_goal(900)
    telemetry = metadata_of(bodies, budget)
    assert telemetry["summarizedRoundCount"] > 10
    assert telemetry["boundaryAdjustmentDelta"] == telemetry["summarizedRoundCount"] - 10
    view = half(bodies, budget)
    assert view.tokens <= 900
    one_less = view.tokens + 110 + budget.replacement_cap
    assert one_less > 900


def test_a_half_that_would_part_a_call_from_its_result_moves_on() -> None:
    """Five calls, each answered only after another assistant message: half of the ten rounds lies inside a pair."""
    pairs = [
        body
        for i in range(5)
        for body in (assistant(None, call(f"a{i}")), assistant("thinking aloud"), tool(f"a{i}", words(30)))
    ]
    telemetry = metadata_of([user("go"), *pairs])
    assert (telemetry["summarizedRoundCount"], telemetry["boundaryAdjustmentDelta"]) == (6, 1)


@pytest.mark.parametrize("overlap", range(5))
@pytest.mark.parametrize("bodies", [agent(12), chat(12)], ids=["agent", "chat"])
def test_a_goal_that_cannot_be_met_leaves_the_overlap(bodies: list[Body], overlap: int) -> None:
    telemetry = metadata_of(bodies, ROOMY.with_goal(0), min_overlap=overlap)
    assert telemetry["keptRoundCount"] == overlap + 1
    assert telemetry["summarizedRoundCount"] == 11 - overlap


def test_an_exact_half_stays_whatever_the_goal() -> None:
    telemetry = metadata_of(agent(12, size=100), ROOMY.with_goal(0), exact=True)
    assert (telemetry["summarizedRoundCount"], telemetry["boundaryAdjustmentDelta"]) == (6, 0)


def test_moving_on_takes_turns_before_rounds() -> None:
    bodies = [*turn(1, 2, 100), *turn(2, 3, 100), *turn(3, 3, 100), *turn(4, 1, 100), user("?")]
    view = half(bodies, Budget.of(3_000).with_goal(1_000))
    assert view.tokens <= 1_000
    assert "Turn 4" in texts(view)
    assert texts(view)[2].startswith("Turn ")


# --- asking -----------------------------------------------------------------------------------------------------


# --- what comes out ---------------------------------------------------------------------------------------------


def test_the_kept_rounds_stand_byte_for_byte_behind_the_summary() -> None:
    bodies = agent(8)
    view = half(bodies)
    kept = [item.message.raw for item in view.items[2:]]
    assert kept == [message.raw for message in transcript_of(bodies).chain[-len(kept) :]]
    assert previous_text(view).startswith("Goal: mend the parser.")


def test_an_open_turns_user_message_stays_behind_the_summary() -> None:
    bodies = [*turn(1, 2), *turn(2, 8)]
    said_by_user = [body["content"] for body in bodies_of(half(bodies)) if body["role"] == "user"]
    assert said_by_user[0] == "Turn 1"
    assert said_by_user[-1] == "Turn 2"
    assert len(said_by_user) == 3


def test_the_telemetry_has_the_documents_fields() -> None:
    assert metadata_of(TEN_ROUNDS) == {
        "compressionMode": "half-window",
        "fallbackLevel": 0,
        "usedFallback": False,
        "compressionFallbackReason": None,
        "totalRoundCount": 10,
        "cursorCount": 10,
        "summarizedRoundCount": 3,
        "keptRoundCount": 7,
        "splitStrategy": "turn-boundary",
        "splitPivotTurnIndex": 1,
        "splitPivotRoundIndex": 0,
        "boundaryAdjustmentType": "adjusted-to-turn-start",
        "boundaryAdjustmentDelta": -2,
        "isContinuation": False,
        "promptDigest": prompt_digest("summary", "memory"),
    }


def test_a_history_without_active_rounds_is_a_continuation() -> None:
    assert metadata_of(chat(8))["isContinuation"]
    assert not metadata_of(agent(8))["isContinuation"]


def test_it_asks_the_summarizer_once_for_what_the_replacement_has_room_for() -> None:
    (strategy,) = stages_of("half-window")
    asked = questions(strategy.condense(view_of(agent(6)), Budget.of(4_000), SessionFacts()))
    assert len(asked) == 1
    assert isinstance(asked[0], Ask)
    assert asked[0].role == SUMMARIZER
    assert 600 <= asked[0].max_tokens <= 800
    (capped,) = stages_of("half-window", half_window={"summary_max_tokens": 100, "memory_cards": False})
    (question,) = questions(capped.condense(view_of(agent(6)), Budget.of(4_000), SessionFacts()))
    assert question.max_tokens == 100 + TAG_TOKENS
