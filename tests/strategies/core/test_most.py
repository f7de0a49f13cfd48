"""`marks.most` and the price step: when they call for a smaller view, and what stays whole where nothing else does."""

import pytest

from strategies.core.budget import UNLIMITED, Budget, Cause, Marks, Scale
from strategies.core.economics import Prices, PriceStep
from strategies.core.messages import Role
from strategies.core.requirement import Requirement, is_by_choice, is_called, last_growth, spared
from strategies.core.view import View
from strategies.pipeline import cheapest
from tests.strategies.driving import attempted
from tests.support.transcripts import agent, chat, step, user, view_of, words

LARGE = Budget.of(1_000_000)
MOST = LARGE.at_most(20_000, None)
STEP = LARGE.at_most(0, 20_000)


def test_the_least_of_the_three_is_the_trigger() -> None:
    assert (LARGE.trigger, LARGE.cause) == (846_518, Cause.SHARE)
    assert (MOST.trigger, MOST.cause) == (20_000, Cause.MOST)
    assert LARGE.at_most(20_000, 15_000).cause is Cause.STEP
    assert LARGE.at_most(900_000, 950_000).cause is Cause.SHARE
    assert LARGE.at_most(0, None) == LARGE


@pytest.mark.parametrize("most", [1_000, 20_000, 199_999, 200_000, 654_321])
def test_the_trigger_is_just_that_size_and_all_shares_are_of_it(most: int) -> None:
    budget = LARGE.at_most(most, None)
    assert budget.trigger == most
    assert budget.window == pytest.approx(most / 0.85, abs=1)
    assert budget.target == pytest.approx(most * 0.5 / 0.85, abs=1)


def test_what_fits_is_judged_by_the_window_itself() -> None:
    assert MOST.fits == LARGE.usable
    assert MOST.headroom(30_000) == LARGE.headroom(30_000)
    unknown = Budget.of(UNLIMITED, reserve=0).at_most(20_000, None)
    assert unknown.trigger == 20_000
    assert unknown.fits == UNLIMITED


def of_size(tokens: int, *, inside_turn: bool) -> View:
    """A view of so many tokens that ends with a question, or with the results of a round."""
    messages = agent(8, 300) if inside_turn else chat(6, 300)
    return view_of(messages, fixed=tokens - view_of(messages).tokens)


def test_most_waits_for_the_next_question_until_the_view_is_an_eighth_above_it() -> None:
    assert not is_called(of_size(19_999, inside_turn=False), MOST)
    assert is_called(of_size(20_000, inside_turn=False), MOST)
    assert not is_called(of_size(22_499, inside_turn=True), MOST)
    assert is_called(of_size(22_500, inside_turn=True), MOST)


def test_a_price_step_is_not_crossed_inside_a_turn_either() -> None:
    growth = last_growth(of_size(10_000, inside_turn=True))
    assert growth > 300
    assert not is_called(of_size(20_000 - growth, inside_turn=True), STEP)
    assert is_called(of_size(20_001 - growth, inside_turn=True), STEP)


def test_inside_a_turn_the_mark_of_the_window_does_not_wait() -> None:
    budget = Budget.of(24_000).at_most(16_900, None)
    assert (budget.cause, budget.share_trigger) == (Cause.MOST, 17_850)
    assert not is_called(of_size(17_849, inside_turn=True), budget)
    assert is_called(of_size(17_850, inside_turn=True), budget)


def test_users_and_pictures_stay_whole_where_money_alone_asks() -> None:
    view = view_of([user(words(600)), *agent(12, 300)[1:], user(words(500)), *agent(6, 300)[1:], user("Go on.")])
    budget = LARGE.at_most(view.tokens, None)
    after = attempted(Requirement.SOFT, "extract", view, budget).view
    kept = {item.source for item in after.items if item.intact}
    said = {i for i, message in enumerate(view.transcript.chain) if message.role is Role.USER}
    assert said <= kept
    assert after.tokens < 0.9 * view.tokens
    hard = attempted(Requirement.HARD, "extract", view, budget.with_goal(budget.target)).view
    assert not said <= {item.source for item in hard.items if item.intact}


def test_users_stay_whole_where_only_a_step_above_the_mark_of_the_window_asks() -> None:
    view = view_of([user(words(600)), *agent(12, 300)[1:], user(words(500)), *agent(6, 300)[1:], user("Go on.")])
    step = view.tokens + last_growth(view) - 1

    def budget(trigger: float) -> Budget:
        marks = Marks(prepare=0.3, trigger=trigger, target=0.2)
        return Budget.of(2 * view.tokens, reserve=0, marks=marks).at_most(0, step)

    assert [budget(share).cause for share in (0.49, 0.51)] == [Cause.SHARE, Cause.SHARE]
    assert view.tokens < budget(0.51).trigger < step
    assert is_called(view, budget(0.51))
    said = {i for i, message in enumerate(view.transcript.chain) if message.role is Role.USER}

    def kept(budget: Budget) -> set[int | None]:
        after = attempted(Requirement.SOFT, "extract", view, budget).view
        return {item.source for item in after.items if item.intact}

    assert said <= kept(budget(0.51))
    assert not said <= kept(budget(0.49))


def test_a_view_that_does_not_fit_well_is_not_cut_by_choice() -> None:
    view = of_size(30_000, inside_turn=False)
    assert not is_by_choice(view, Budget.of(34_000).at_most(20_000, None))
    assert is_by_choice(view, MOST)


@pytest.mark.parametrize("said", [0, 4_000])
def test_by_choice_a_view_becomes_as_small_as_what_stays_the_newest_rounds_and_a_record(said: int) -> None:
    view = view_of([*agent(60, 300), *([user(words(said))] if said else []), *agent(6, 300)[1:], user("Go on.")])
    budget = LARGE.at_most(view.tokens, None)
    after = attempted(Requirement.SOFT, "extract", view, budget).view
    assert cheapest(view, budget).target < budget.target / 2
    assert after.tokens <= cheapest(spared(view), budget).target
    rounds = view.structure.rounds[-2:]
    assert set(range(rounds[0].start, rounds[-1].end)) <= {item.source for item in after.items if item.intact}


def test_by_choice_the_newest_results_of_files_have_room() -> None:
    read = [each for i in range(4) for each in step(1_000 + i, 3_000, "read", {"path": f"src/part_{i % 2}.py"})]
    view = view_of([*agent(40, 300), *read, *agent(6, 300)[1:], user("Go on.")])
    budget, without = LARGE.at_most(view.tokens, None), view_of(agent(46, 300))
    assert cheapest(view, budget).target > cheapest(without, budget).target + 5_000


def test_by_choice_a_view_is_condensed_although_an_upstream_adds_more_than_most_by_itself() -> None:
    hidden = MOST.scaled(Scale(offset=MOST.usable, slope=1.0))
    view = view_of(agent(60, 300))
    assert hidden.usable == 0
    assert attempted(Requirement.SOFT, "mask", view, hidden).view.tokens < view.tokens / 2


def test_above_a_step_the_whole_prompt_costs_more() -> None:
    prices = Prices(input=2.0, cached_input=0.2, cache_write=2.5, output=10.0, step=PriceStep(1_000))
    assert prices.of_call(prompt=1_000, reply=100) == pytest.approx((1_000 * 2.0 + 100 * 10.0) / 1e6)
    assert prices.of_call(prompt=1_001, reply=100) == pytest.approx((1_001 * 4.0 + 100 * 15.0) / 1e6)
    assert prices.of_prompt(1_001, 1_000) == pytest.approx((2.5 + 1_000 * 0.2) * 2 / 1e6)
