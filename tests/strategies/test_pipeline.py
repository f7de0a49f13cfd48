"""Pipelines: stages run only while the goal is not met; `run_required` reads the requirement's rule."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import pytest

from strategies.core.budget import Budget
from strategies.core.effects import Answer, Ask, Effect
from strategies.core.errors import Declined, StrategyError
from strategies.core.messages import dump
from strategies.core.pieces import Literal, PieceKind
from strategies.core.plan import Plan, Replace, newest_is_shortened
from strategies.core.protocol import SessionFacts, Steps, Strategy
from strategies.core.requirement import Requirement
from strategies.core.view import View
from strategies.pipeline import Outcome, run, run_required
from tests.strategies.driving import attempted, condensed, failing, finish, good, ladder, later, stages_of
from tests.support.transcripts import (
    Body,
    agent,
    assistant,
    call,
    chat,
    step,
    tool,
    transcript_of,
    user,
    view_of,
    words,
)


@dataclass
class Drops:
    """A stage that drops the oldest round, and notes that it ran."""

    name: str = "drops"
    asks: bool = False
    may_cut_newest_results: bool = False
    continues: bool = True
    reads_opaque: bool = False
    ran: list[int] = field(default_factory=list)

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        self.ran.append(view.tokens)
        yield from ()
        return Plan((self.edit(view),), {"by": self.name})

    def edit(self, view: View) -> Replace:
        oldest = view.structure.rounds[0]
        return Replace(oldest.start, oldest.end)


class Breaks(Drops):
    """A stage whose plan drops the newest round."""

    def edit(self, view: View) -> Replace:
        newest = view.structure.rounds[-1]
        return Replace(newest.start, newest.end)


class Grows(Drops):
    """A stage that makes a view larger."""

    def edit(self, view: View) -> Replace:
        return Replace(2, 3, (Literal(dump(tool("c0", words(5_000))), PieceKind.MASKED, 2),))


class Declines(Drops):
    """A stage that does nothing and says so."""

    def edit(self, view: View) -> Replace:
        raise Declined("not-today")


class Asks(Drops):
    """A stage that asks a model."""

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        self.ran.append(view.tokens)
        (answer,) = yield (Ask("s", "u", 10),)
        return Plan((self.edit(view),), {"answer": answer.text if isinstance(answer, Answer) else ""})


BUDGET = Budget.of(4_000)
VIEW = view_of(agent(10, size=100))
ROUND = VIEW.items[1].message.tokens + VIEW.items[2].message.tokens


def as_stages(stages: Sequence[Drops]) -> Sequence[Strategy]:
    """The stages of a test; a real strategy's name is its class's, not its instance's."""
    return cast(Sequence[Strategy], stages)


def running(stages: Sequence[Drops], goal: int, rungs: Sequence[Drops] = (), budget: Budget = BUDGET) -> Outcome:
    return finish(run(as_stages(stages), as_stages(rungs), VIEW, budget.with_goal(goal), SessionFacts()))


def test_stages_run_in_order_on_what_the_ones_before_have_left() -> None:
    one, two = Drops("one"), Drops("two")
    outcome = running([one, two], 0)
    assert outcome.stages == ["one", "two"]
    assert (one.ran, two.ran) == ([VIEW.tokens], [VIEW.tokens - ROUND])
    assert outcome.view.tokens == VIEW.tokens - 2 * ROUND
    assert outcome.metadata == {"one": {"by": "one"}, "two": {"by": "two"}}


def test_a_stage_runs_only_while_the_goal_is_not_met() -> None:
    outcome = running([Drops("one"), two := Drops("two")], VIEW.tokens - ROUND)
    assert (outcome.stages, two.ran) == (["one"], [])


def test_the_first_stages_run_though_the_view_is_within_its_goal() -> None:
    """Forced, a small view is condensed all the same."""
    assert running([Declines("none"), Drops("one"), Drops("two")], 100_000).stages == ["one"]


@pytest.mark.parametrize(
    ("stage", "reason"),
    [(Declines("bad"), "not-today"), (Breaks("bad"), "invalid-plan"), (Grows("bad"), "no-progress")],
    ids=["declines", "breaks a rule", "grows"],
)
def test_a_failed_stage_leaves_the_view_to_the_next(stage: Drops, reason: str) -> None:
    outcome = running([stage, Drops("good")], 0)
    assert outcome.stages == ["good"]
    assert outcome.reasons == {"bad": reason}
    assert outcome.reason == reason
    assert outcome.view.tokens == VIEW.tokens - ROUND


def test_a_plan_that_breaks_a_rule_says_which() -> None:
    assert "newest round" in running([Breaks("bad")], 0).metadata["bad"]["invalidPlan"]


class Fails(Drops):
    def edit(self, view: View) -> Replace:
        raise ValueError


def test_a_defect_costs_its_stage_only_and_is_told() -> None:
    outcome = running([Fails("bad"), Drops("good")], 0)
    assert outcome.stages == ["good"]
    assert outcome.reasons["bad"] == "internal-error"
    assert [type(defect) for defect in outcome.defects] == [ValueError]


def test_the_ladder_runs_only_at_or_above_the_trigger() -> None:
    goal = VIEW.tokens // 2
    at = next(b for w in range(500, 4_000) if (b := Budget.of(w)).trigger >= VIEW.tokens - ROUND)
    assert running([Drops("one")], goal, [Drops("rung")], budget=at).stages == ["one", "rung"]
    above = Budget.of(at.window + 20)
    assert above.trigger > VIEW.tokens - ROUND
    assert running([Drops("one")], goal, [Drops("rung")], budget=above).stages == ["one"]


def test_the_ladder_stops_below_the_trigger() -> None:
    budget = next(b for w in range(500, 4_000) if (b := Budget.of(w)).trigger > VIEW.tokens - 2 * ROUND)
    rungs = [Drops("a"), Drops("b"), Drops("c"), Drops("d")]
    assert running([], 0, rungs, budget=budget).stages == ["a", "b"]


# --- run_required -----------------------------------------------------------------------------------------------


def trying(requirement: Requirement, stages: Sequence[Drops], view: View = VIEW, budget: Budget = BUDGET) -> Outcome:
    return finish(run_required(requirement, as_stages(stages), [], view, budget, SessionFacts()))


@pytest.mark.parametrize(
    ("requirement", "may"),
    [(Requirement.SOFT, False), (Requirement.PREPARE, True), (Requirement.HARD, True), (Requirement.FORCED, True),
     (Requirement.OVERFLOW, True)],
)  # fmt: skip
def test_soft_alone_runs_no_stage_that_asks(requirement: Requirement, may: bool) -> None:
    asks = Asks("asks", asks=True)
    outcome = trying(requirement, [asks, *(Drops(name) for name in "abcde")], budget=Budget.of(1_300))
    assert bool(asks.ran) is may
    assert ("asks" in outcome.stages) is may


@pytest.mark.parametrize(("requirement", "uses"), [(Requirement.SOFT, False), (Requirement.HARD, True)])
def test_the_ladder_is_for_the_hard_ones(requirement: Requirement, uses: bool) -> None:
    rung = Drops("rung")
    with suppress(Declined):
        finish(
            run_required(
                requirement, as_stages([Drops("one")]), as_stages([rung]), VIEW, Budget.of(600), SessionFacts()
            )
        )
    assert bool(rung.ran) is uses


def test_the_goal_is_the_target() -> None:
    outcome = attempted(Requirement.HARD, "recent", view_of(agent(40, size=100)), BUDGET)
    assert BUDGET.target - ROUND < outcome.view.tokens <= BUDGET.target


@pytest.mark.parametrize("requirement", [Requirement.SOFT, Requirement.PREPARE])
def test_a_small_shrink_is_not_used_where_there_is_time(requirement: Requirement) -> None:
    view = view_of([user("go"), *step(0, 100), *agent(20, size=100)[2:]])
    with pytest.raises(Declined, match="no-progress"):
        trying(requirement, [Drops("one")], view)
    assert trying(requirement, [Drops("one"), Drops("two"), Drops("three")], view, Budget.of(4_300)).stages


@pytest.mark.parametrize("requirement", [Requirement.SOFT, Requirement.PREPARE])
def test_a_missed_goal_must_leave_room_for_two_requests(requirement: Requirement) -> None:
    budget = Budget.of(1_300)
    four = [Drops(name) for name in "abcd"]
    assert ROUND < budget.trigger - (VIEW.tokens - 4 * ROUND) < 2 * ROUND
    with pytest.raises(Declined, match="no-progress"):
        trying(requirement, four, budget=budget)
    enough = trying(requirement, [*four, Drops("e")], budget=budget)
    assert budget.target < enough.view.tokens <= budget.trigger - 2 * ROUND


def test_what_a_model_wrote_is_used_though_it_leaves_less_room() -> None:
    stages = [Asks("asks", asks=True), *(Drops(name) for name in "abc")]
    assert "asks" in trying(Requirement.PREPARE, stages, budget=Budget.of(1_300)).stages


def test_any_shrink_is_used_where_the_view_must_fit() -> None:
    view = view_of(agent(30, size=100))
    for requirement in (Requirement.HARD, Requirement.FORCED, Requirement.OVERFLOW):
        assert trying(requirement, [Drops("one")], view).stages == ["one"]


def test_where_no_stage_does_anything_the_first_reason_is_given() -> None:
    with pytest.raises(Declined) as declined:
        trying(Requirement.SOFT, [Declines("a"), Breaks("b")])
    assert declined.value.reason == "not-today"
    with pytest.raises(Declined, match="nothing-to-condense"):
        trying(Requirement.SOFT, [])


def test_that_a_stage_has_nothing_to_do_is_no_failure() -> None:
    outcome = attempted(Requirement.HARD, "mask+half-window", view_of(chat(40, size=100)), BUDGET)
    assert outcome.reasons == {"mask": "nothing-to-mask"}
    assert outcome.failure == ""
    outcome = attempted(Requirement.HARD, "mask+half-window", view_of(chat(40, size=100)), BUDGET, failing)
    assert outcome.failure == "summary-unreachable"


# --- the real stages together -----------------------------------------------------------------------------------


def test_the_default_masks_first_and_asks_only_if_that_is_not_enough() -> None:
    asked: list[Effect] = []

    def reply(effect: Effect) -> Answer:
        asked.append(effect)
        return Answer("<summary>Goal: x. The parser was read, and its tests were run after each change.</summary>")

    roomy = view_of([user("go"), *step(0, 2_000), *agent(8, size=60)[2:]])
    assert attempted(Requirement.HARD, "mask+half-window", roomy, BUDGET, reply).stages == ["mask"]
    assert asked == []
    long = view_of(agent(40, size=100))
    assert attempted(Requirement.HARD, "mask+half-window", long, BUDGET, reply).stages == ["mask", "half-window"]
    assert asked


def test_a_summarizer_that_is_out_leads_to_the_ladder() -> None:
    outcome = attempted(Requirement.HARD, "half-window", view_of(chat(60, size=100)), BUDGET, failing)
    assert outcome.stages == ["extract"]
    assert outcome.view.tokens <= BUDGET.target


def test_the_newest_result_is_cut_when_nothing_else_helps() -> None:
    view = view_of([*agent(2, size=50), *step(9, 9_000)])
    outcome = attempted(Requirement.HARD, "mask+half-window", view, BUDGET)
    assert outcome.stages[-1] == "shorten"
    assert newest_is_shortened(outcome.view)
    assert outcome.view.tokens <= BUDGET.usable


def test_stages_behind_shorten_still_run_when_it_has_cut_the_newest_round() -> None:
    view = view_of([*agent(30, size=100), *step(99, 4_000)])
    outcome = attempted(Requirement.HARD, "shorten+half-window", view, BUDGET, shorten={"newest": True})
    assert newest_is_shortened(outcome.view)
    assert outcome.stages == ["shorten", "half-window"]


def test_a_view_whose_newest_round_was_cut_before_can_be_condensed_again() -> None:
    """The same request again, in a smaller window: what was cut for it stays cut."""
    bodies = [*agent(30, size=100), *step(99, 3_000)]
    first = condensed("shorten", view_of(bodies), Budget.of(6_000), newest=True)
    assert newest_is_shortened(first)
    again = later(first, transcript_of(bodies))
    outcome = attempted(Requirement.HARD, "half-window", again, Budget.of(2_000))
    assert "half-window" in outcome.stages
    assert outcome.view.tokens <= Budget.of(2_000).usable


def test_what_cannot_be_condensed_is_refused_with_a_reason() -> None:
    with pytest.raises(StrategyError) as error:
        attempted(Requirement.HARD, "mask+half-window", view_of([user(words(9_000))]), BUDGET)
    assert error.value.reason == "nothing-to-mask"


@pytest.mark.parametrize(
    "bodies",
    [
        [assistant("Welcome! " + words(3_000)), user("task"), assistant("a"), user("b")],
        [user("task"), assistant(None, call("a")), user("wait"), tool("a", words(3_000)), assistant("b"), user("c")],
        [user("a"), user("paste " + words(3_000)), user("b")],
    ],
    ids=["a long greeting", "a late result", "users only"],
)
def test_odd_openings_are_brought_to_usable(bodies: list[Body]) -> None:
    outcome = attempted(Requirement.HARD, "half-window", view_of(bodies), Budget.of(3_000), good)
    assert outcome.view.tokens <= Budget.of(3_000).usable


def test_the_ladder_is_made_of_stages_that_ask_nobody() -> None:
    assert [stage.name for stage in ladder()] == ["extract", "recent", "shorten"]
    assert not any(stage.asks for stage in ladder())
    assert [stage.asks for stage in stages_of("mask+half-window+recent")] == [False, True, False]
