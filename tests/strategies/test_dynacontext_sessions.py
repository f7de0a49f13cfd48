"""`dynacontext`: plans that follow a verdict, and whole sessions with judges, keep the invariants."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.core.condensation import JUDGED
from strategies.core.effects import Effect, Result, Vote, Votes
from strategies.core.errors import StrategyError
from strategies.core.protocol import SessionFacts, Verdict
from strategies.core.requirement import Requirement
from strategies.core.transcript import Transcript
from strategies.core.view import View
from strategies.dynacontext import DynaContext, DynaContextOptions, leave_out
from strategies.pipeline import run_required
from tests.strategies.driving import attempted, finish, good, judged_session, stages_of
from tests.strategies.invariants import faults
from tests.strategies.test_invariants import STABLE
from tests.strategies.test_session_simulation import Simulated, recorded_as
from tests.support.transcripts import Body, chat, conversations, largest_of_each_kind, requests_of, view_of

MODES = ["chat", "openhands", "refer"]


def check_judged(bodies: list[Body], newer: int | None, window: int, options: dict[str, Any]) -> bool:
    """Whether a YES on all but the last `newer` messages condenses; the view, rolled back too, keeps the rules.

    With `newer` None there was no vote.
    """
    view, budget = view_of(bodies, 40), Budget.of(window)
    facts = SessionFacts() if newer is None else judged_session(view, min(newer, len(view.transcript.chain) - 1))
    running = run_required(Requirement.PREPARE, stages_of("dynacontext", dynacontext=options), (), view, budget, facts)
    try:
        after = finish(running, good).view
    except StrategyError:
        return False
    assert after.tokens < view.tokens
    assert faults(after, budget) == []
    back = leave_out(after, DynaContextOptions(on_drift="rollback"), {})
    if back is not None:
        assert back.view.tokens < after.tokens
        assert faults(back.view, budget) == []
    return True


@given(
    bodies=conversations(broken=True, at_most=30),
    newer=st.none() | st.integers(0, 8),
    window=st.sampled_from([300, 1_000, 2_500, 8_000]),
    mode=st.sampled_from(MODES),
    ends=st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)),
)
@STABLE
def test_sessions_keep_the_invariants_with_any_options(
    bodies: list[Body], newer: int | None, window: int, mode: str, ends: tuple[int, int, int]
) -> None:
    first, last, tail = ends
    check_judged(
        bodies, newer, window, {"mode": mode, "keep_first": first, "keep_last": last, "exclude_tail_max": tail}
    )


@pytest.mark.parametrize("mode", MODES)
def test_what_follows_a_verdict_keeps_the_invariants_over_recorded_conversations(mode: str) -> None:
    found = [
        check_judged(one.messages, behind, window, {"mode": mode})
        for one in largest_of_each_kind(at_most=150)
        for window in (1_000, 4_000, 16_000)
        for behind in (None, 0, 3)
    ]
    assert any(found)


# --- whole sessions ---------------------------------------------------------------------------------------------


class Voting(Simulated):
    """A session in which a round of votes is held after each reply, where one should be, and says YES."""

    votes: tuple[Verdict, ...] = ()
    skipped: tuple[str, ...] = ()

    def handled(self, transcript: Transcript) -> View:
        view = super().handled(transcript)
        (stage,) = stages_of(self.pipeline, dynacontext={"min_growth": 0})
        assert isinstance(stage, DynaContext)
        facts = SessionFacts(condensations=tuple(self.records), verdicts=self.votes)
        reason = stage.skip_reason(view, self.budget, facts)
        self.skipped += (reason,)
        if not reason:
            vote = finish(stage.judge(view, self.budget, facts), say_yes)
            self.votes += (vote,)
            self.prepare(view, replace(facts, verdict=vote))
        return view

    def prepare(self, view: View, facts: SessionFacts) -> None:
        try:
            after = attempted(Requirement.PREPARE, self.pipeline, view, self.budget, good, facts).view
        except StrategyError:
            return
        parent = next((each for each in self.records if each.id == self.last), None)
        made = replace(recorded_as(after, self.budget, view.tokens, parent), trigger=JUDGED)
        self.records.append(made)
        # The next request rests on it, and begins with other bytes.
        self.last, self.sent = made.id, "["


def say_yes(effect: Effect) -> Result:
    return Votes((Vote(True, "done"),) * 3, calls=5)


def voting(bodies: list[Body], window: int) -> Voting:
    session = Voting("dynacontext", Budget.of(window))
    for request in requests_of(bodies):
        session.request(request)
    return session


def test_judges_that_always_say_yes_branch_at_most_five_times() -> None:
    session = voting(chat(60, size=200), window=50_000)
    assert [each.depth for each in session.records] == [1, 2, 3, 4, 5]
    assert session.condensed == 0
    assert session.skipped[-1] == "max-branches"
    assert session.skipped[:6] == ("early-turns", "cannot-shrink", "", "early-turns", "", "early-turns")


def test_a_session_without_votes_goes_on_at_its_limit() -> None:
    session = voting(chat(60, size=60), window=2_000)
    assert sum(each.trigger == JUDGED for each in session.records) == 5
    assert session.condensed >= 1


@given(bodies=conversations(broken=True, at_most=40), window=st.sampled_from([300, 900, 2_500]))
@STABLE
def test_voted_sessions_keep_the_invariants(bodies: list[Body], window: int) -> None:
    voting(bodies, window)
