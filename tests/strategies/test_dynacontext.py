"""`dynacontext`: what a vote and the context limit condense, and what stays."""

from typing import Any

import pytest

from strategies import stages
from strategies.core.budget import Budget
from strategies.core.effects import Answer, Ask, Effect, Result
from strategies.core.errors import NothingToSummarize, OptionError, StrategyError
from strategies.core.pieces import Keep, Literal, PieceKind
from strategies.core.plan import apply, check
from strategies.core.protocol import Judging, SessionFacts
from strategies.core.replacement import previous_text
from strategies.core.requirement import Requirement
from strategies.core.view import View
from strategies.dynacontext import DynaContext, DynaContextOptions
from tests.strategies.driving import (
    RECORD,
    attempted,
    finish,
    good,
    judged_session,
    later,
    stages_of,
    texts,
    verdict_on,
)
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


def strategy(**options: Any) -> DynaContext:
    """The strategy with options as a request gives them."""
    (made,) = stages_of("dynacontext", dynacontext=options)
    assert isinstance(made, DynaContext)
    return made


def plan(view: View, session: SessionFacts, reply: Any = good, **options: Any) -> Any:
    return finish(strategy(**options).condense(view, ROOMY, session), reply)


def condensed(view: View, session: SessionFacts, reply: Any = good, **options: Any) -> View:
    """The checked view after a plan."""
    after = apply(view, plan(view, session, reply, **options))
    check(after)
    return after


def voted(bodies: list[Body], newer: int = 0, **options: Any) -> View:
    """The view after a YES on the transcript as it was `newer` messages earlier."""
    view = view_of(bodies)
    return condensed(view, judged_session(view, newer), **options)


def at_limit(bodies: list[Body], **options: Any) -> View:
    """The view after the context limit."""
    return condensed(view_of(bodies), SessionFacts(), **options)


def metadata_of(bodies: list[Body], newer: int | None = 0, **options: Any) -> dict[str, Any]:
    """The metadata of a plan that follows a YES, or with `newer` None the context limit."""
    view = view_of(bodies)
    return dict(plan(view, SessionFacts() if newer is None else judged_session(view, newer), **options).metadata)


def sources(view: View) -> list[int | None]:
    """The chain index of each item; None for what is ours."""
    return [item.source for item in view.items]


def test_it_is_a_strategy_with_a_judge() -> None:
    made = strategy()
    assert isinstance(made, Judging)
    assert (made.name, made.asks, made.inline) == ("dynacontext", True, False)
    assert strategy(judge="inline").inline


# --- modes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "chosen"),
    [
        ("chat", (-1, "keep", "carry", False, 5, 1, "stop")),
        ("openhands", (-1, "drop", "carry", False, 0, 0, "refill")),
        ("refer", (0, "drop", "rollback", True, 0, 0, "refill")),
    ],
)
def test_a_mode_stands_for_the_choices_of_its_source(mode: str, chosen: tuple[object, ...]) -> None:
    options = strategy(mode=mode).options
    own = (options.min_growth, options.tail, options.on_drift, options.empty_assistant)
    assert (*own, options.max_branches, options.cool_down, options.unreadable) == chosen
    assert (options.keep_first, options.keep_last, options.voting_k, options.early_turns) == (1, 0, 5, 1)
    assert options.exclude_tail_max == 2


def test_the_default_mode_is_what_the_options_are_without_one() -> None:
    assert strategy().options == strategy(mode="chat").options == DynaContextOptions()


def test_an_option_beside_a_mode_comes_first() -> None:
    options = strategy(mode="refer", tail="keep", empty_assistant=False).options
    assert (options.tail, options.empty_assistant, options.on_drift) == ("keep", False, "rollback")


def test_a_mode_of_the_request_comes_before_options_of_the_settings() -> None:
    defaults = {"dynacontext": {"mode": "refer", "tail": "keep", "voting_k": 3}}
    (made,) = stages(["dynacontext"], {"dynacontext": {"mode": "openhands"}}, defaults)
    assert isinstance(made, DynaContext)
    assert (made.options.tail, made.options.on_drift, made.options.voting_k) == ("drop", "carry", 3)


# --- after a vote -----------------------------------------------------------------------------------------------


def test_after_a_vote_the_middle_becomes_the_record() -> None:
    view = voted(chat(6))
    assert sources(view) == [0, None, 11, 12]
    assert previous_text(view).startswith(RECORD)
    assert "[Condensed history] The 10 earlier messages" in texts(view)[1]


def test_within_a_turn_the_newest_round_is_the_tail_and_stays() -> None:
    view = voted(agent(8))
    assert sources(view) == [0, None, 15, 16]
    assert metadata_of(agent(8))["tail_exclusion_count"] == 2


def test_the_tail_ends_at_a_message_of_the_user() -> None:
    bodies = [
        user("go"),
        *step(0, 80),
        *step(1, 80),
        user("and?"),
        assistant("one"),
        assistant("two"),
        assistant("three"),
    ]
    assert sources(voted(bodies)) == [0, None, 5, 7, 8]
    assert metadata_of(bodies)["tail_exclusion_count"] == 2
    assert sources(voted(bodies, exclude_tail_max=5)) == [0, None, 5, 6, 7, 8]
    assert metadata_of(bodies, exclude_tail_max=5)["tail_exclusion_count"] == 3
    assert sources(voted(bodies, exclude_tail_max=0)) == [0, None, 5, 8]
    assert metadata_of([*bodies, user("?")])["tail_exclusion_count"] == 0


def test_a_tail_that_is_kept_grows_by_the_rest_of_its_round() -> None:
    wide = [assistant(None, call("a"), call("b"), call("c")), tool("a"), tool("b"), tool("c")]
    bodies = [*agent(6)[1:], *wide, *step(9)]
    assert sources(voted(bodies, newer=2)) == [0, None, *range(13, 19)]
    assert metadata_of(bodies, newer=2)["tail_exclusion_count"] == 4


def test_a_dropped_tail_is_in_neither_view_nor_record() -> None:
    shown: list[str] = []

    def reply(effect: Effect) -> Result:
        assert isinstance(effect, Ask)
        shown.append(effect.user)
        return good(effect)

    bodies = agent(8)
    view = view_of(bodies)
    after = condensed(view, judged_session(view, newer=2), reply, tail="drop")
    assert sources(after) == [0, None, 15, 16]
    assert "step 5" in shown[0]
    assert "step 6" not in shown[0]
    metadata = metadata_of(bodies, newer=2, tail="drop")
    assert metadata["tail_exclusion_count"] == 2
    assert metadata["summary_candidate_event_ids"] == list(range(1, 13))


def test_a_tail_that_is_dropped_shrinks_to_whole_rounds() -> None:
    wide = [assistant(None, call("a"), call("b"), call("c")), tool("a"), tool("b"), tool("c")]
    bodies = [*agent(6)[1:], *wide, *step(9)]
    assert sources(voted(bodies, newer=2, tail="drop")) == [0, None, 17, 18]
    assert metadata_of(bodies, newer=2, tail="drop")["tail_exclusion_count"] == 0
    assert metadata_of(bodies, newer=2, tail="drop")["summary_candidate_count"] == 16


def test_the_newest_round_is_never_a_dropped_tail() -> None:
    assert sources(voted(agent(8), tail="drop")) == [0, None, 15, 16]
    assert sources(voted([*chat(3), assistant("one"), user("?")], newer=1, tail="drop")) == [0, None, 7, 8]
    bodies = [*chat(3), *step(0), *step(1), *step(2)]
    assert sources(voted(bodies, newer=2, tail="drop")) == [0, None, 6, 11, 12]


def test_a_late_verdict_condenses_what_it_knew_and_carries_what_came_since() -> None:
    bodies = chat(8)
    assert sources(voted(bodies, newer=4)) == [0, None, *range(13, 17)]
    assert sources(voted(agent(8), newer=4)) == [0, None, *range(11, 17)]


def test_only_a_yes_on_this_chain_counts() -> None:
    view = view_of(agent(8))
    other = judged_session(view_of(agent(8, task="Another task.")))
    for session in (other, SessionFacts(verdict=verdict_on(view, yes=False))):
        assert plan(view, session).metadata["trigger"] == "condensation_request"


def test_a_verdict_on_what_is_condensed_already_leads_to_nothing() -> None:
    bodies = agent(8)
    view = later(voted(bodies), transcript_of([*bodies, *step(8)]))
    with pytest.raises(NothingToSummarize):
        plan(view, judged_session(view, newer=2))


# --- at the context limit ---------------------------------------------------------------------------------------


def test_the_context_limit_leaves_no_tail() -> None:
    bodies = [
        user("go"),
        *step(0, 80),
        *step(1, 80),
        user("and?"),
        assistant("one"),
        assistant("two"),
        assistant("three"),
    ]
    assert sources(at_limit(bodies)) == [0, None, 5, 8]
    metadata = metadata_of(bodies, newer=None)
    assert (metadata["trigger"], metadata["hard_trigger"]) == ("condensation_request", True)
    assert (metadata["judge_metadata"], metadata["judge_votes"]) == (None, [])
    assert metadata["tail_exclusion_count"] == 0


@pytest.mark.parametrize("keep_last", [0, 12, 100])
def test_the_context_limit_always_forgets_something(keep_last: int) -> None:
    view = at_limit(agent(6, size=100), keep_last=keep_last)
    assert sources(view)[:2] == [0, None]
    assert len(view.items) <= 12


def test_the_context_limit_looks_past_a_too_small_first_round() -> None:
    """Everything is among the last messages to keep, and the first round has 41 tokens."""
    metadata = metadata_of(agent(6), newer=None, keep_last=99)
    assert metadata["summary_candidate_count"] > 2
    view = at_limit(agent(6), keep_last=99)
    assert sources(view) == [0, None, *range(metadata["summary_candidate_count"] + 1, 13)]
    small = [user("go"), assistant("ok"), user("on"), *(body for i in range(6) for body in step(i, 200))]
    assert metadata_of(small, newer=None, keep_last=99)["summary_candidate_event_ids"] == [1, 3, 4]


def test_a_model_that_fails_at_the_limit_leaves_it_to_the_rules() -> None:
    def reply(effect: Effect) -> Result:
        return Answer("Summary generation failed.")

    view = view_of(agent(30, size=100))
    outcome = attempted(Requirement.HARD, "dynacontext", view, Budget.of(3_000), reply)
    assert outcome.reasons == {"dynacontext": "summary-empty"}
    assert outcome.stages == ["extract"]
    assert "Summary generation failed" not in outcome.view.to_json()
    with pytest.raises(StrategyError, match="summary-empty"):
        attempted(Requirement.PREPARE, "dynacontext", view, Budget.of(3_000), reply, judged_session(view))


# --- what stays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep_first", "stays"), [(0, [0]), (1, [0]), (2, [0, 1, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3, 4])]
)
def test_keep_first_counts_messages_and_keeps_rounds_whole(keep_first: int, stays: list[int]) -> None:
    view = voted(agent(8), keep_first=keep_first)
    assert sources(view) == [*stays, None, 15, 16]
    assert metadata_of(agent(8), keep_first=keep_first)["summary_candidate_event_ids"] == list(range(stays[-1] + 1, 15))
    assert f"The {16 - len(stays) - 1} earlier" in texts(view)[len(stays)]


def test_the_first_messages_stay_through_further_condensations() -> None:
    bodies = agent(8)
    once = voted(bodies, keep_first=3)
    view = later(once, transcript_of([*bodies, *(body for i in range(8, 14) for body in step(i))]))
    again = condensed(view, judged_session(view), keep_first=3)
    assert sources(again) == [0, 1, 2, None, 27, 28]
    assert plan(view, judged_session(view), keep_first=3).metadata["summary_candidate_event_ids"] == list(range(15, 27))


def test_an_opening_of_the_assistant_goes_into_the_record() -> None:
    bodies = [assistant("Hello!"), user("go"), *(body for i in range(5) for body in step(i))]
    assert sources(voted(bodies)) == [1, None, 10, 11]
    assert metadata_of(bodies)["summary_candidate_event_ids"] == [0, *range(2, 10)]


@pytest.mark.parametrize(("keep_last", "first_kept"), [(0, 15), (2, 15), (3, 13), (6, 11)])
def test_keep_last_keeps_the_newest_messages_in_whole_rounds(keep_last: int, first_kept: int) -> None:
    assert sources(voted(agent(8), keep_last=keep_last)) == [0, None, *range(first_kept, 17)]
    assert metadata_of(agent(8), keep_last=keep_last)["keep_last"] == keep_last


def test_an_open_turns_user_message_stays_behind_the_record() -> None:
    bodies = [*chat(3), *(body for i in range(4) for body in step(i))]
    assert sources(voted(bodies)) == [0, None, 6, 13, 14]


def test_a_long_first_message_is_cut_as_every_strategy_cuts_it() -> None:
    view = voted([user(words(3_000)), *agent(6)[2:], user("and?")])
    first = view.items[0].piece
    assert isinstance(first, Literal)
    assert first.kind is PieceKind.TASK
    assert view.items[0].message.tokens <= 2_000


def test_an_empty_message_of_the_assistant_leads_in_where_it_is_wanted() -> None:
    bodies = agent(8)
    view = voted(bodies, empty_assistant=True)
    assert bodies_of(view)[2] == {"role": "assistant", "content": ""}
    assert view.replacement == 2
    grown = later(view, transcript_of([*bodies, *(body for i in range(8, 14) for body in step(i))]))
    again = condensed(grown, judged_session(grown), empty_assistant=True)
    assert sources(again) == [0, None, None, 27, 28]
    assert [body["content"] for body in bodies_of(again) if body["role"] == "assistant"] == ["", None]


# --- what is left out behind the record -------------------------------------------------------------------------


def left(bodies: list[Body], more: list[Body], **options: Any) -> tuple[View, dict[str, Any]] | None:
    """The view when the record of a YES on `bodies` is applied after `more` has come, and what it says was dropped."""
    grown = later(voted(bodies, **options), transcript_of([*bodies, *more]))
    shortened = strategy(**options).shortened(grown, {"dynacontext": metadata_of(bodies, **options)})
    if shortened is None:
        return None
    check(shortened.view)
    names = ("tail_exclusion_count", "dropped_judged_count", "dropped_judged_event_ids", "dropped_drift_count")
    return shortened.view, {name: shortened.metadata["dynacontext"][name] for name in names}


def dropped(excluded: int, judged: list[int], drift: int) -> dict[str, Any]:
    return {
        "tail_exclusion_count": excluded,
        "dropped_judged_count": len(judged),
        "dropped_judged_event_ids": judged,
        "dropped_drift_count": drift,
    }


def test_rolling_back_drops_all_between_head_and_question() -> None:
    found = left(agent(8), [*step(8), *step(9)], on_drift="rollback")
    assert found is not None
    after, told = found
    assert sources(after) == [0, None, 19, 20]
    assert (after.head_size, after.covered_count) == (2, 19)
    assert all(isinstance(item.piece, Keep) for item in after.items[after.head_size :])
    assert told == dropped(2, [15, 16], 2)


def test_rolling_back_tells_which_judged_messages_are_in_neither_record_nor_view() -> None:
    """Among them is a question of the user's, which no tail has."""
    found = left(
        chat(6), [assistant("so"), user("and then?"), assistant("thus"), user("and now?")], on_drift="rollback"
    )
    assert found is not None
    assert sources(found[0]) == [0, None, 15, 16]
    assert found[1] == dropped(2, [11, 12], 2)


@pytest.mark.parametrize(
    ("bodies", "more", "stay"),
    [
        (agent(8), [*step(8), user("stop"), *step(9), *step(10)], [0, None, *range(19, 24)]),
        (chat(4), [assistant("so"), user("and then?")], [0, None, 9, 10]),
    ],
    ids=["the last user message", "the newest answer before a question"],
)
def test_rolling_back_leaves_what_must_be_answered(
    bodies: list[Body], more: list[Body], stay: list[int | None]
) -> None:
    found = left(bodies, more, on_drift="rollback")
    assert found is not None
    assert sources(found[0]) == stay


def test_rolling_back_is_refused_inside_a_round() -> None:
    assert left(agent(8), [], on_drift="rollback") is None
    late = [assistant(None, call("x")), assistant("aloud"), tool("x")]
    assert left(agent(8), late, on_drift="rollback") is None


@pytest.mark.parametrize("options", [{"tail": "drop"}, {"mode": "openhands"}])
def test_the_tail_is_dropped_when_the_record_is_applied_a_round_later(options: dict[str, Any]) -> None:
    """It was the newest round when the record was made, and must be answered then."""
    found = left(agent(8), [*step(8), *step(9)], **options)
    assert found is not None
    assert sources(found[0]) == [0, None, 17, 18, 19, 20]
    assert found[1] == dropped(2, [15, 16], 0)


@pytest.mark.parametrize(
    ("bodies", "more", "options"),
    [
        (agent(8), step(8), {}),
        (agent(8), [], {"tail": "drop"}),
        (chat(6), [assistant("so"), user("and then?")], {"tail": "drop"}),
        (agent(8), step(8), {"tail": "drop", "exclude_tail_max": 0}),
        (agent(8), step(8), {"tail": "drop", "exclude_tail_max": 1}),
        (agent(8), step(8), {"tail": "drop", "keep_last": 2}),
    ],
    ids=["kept", "still the newest round", "a question ends it", "no tail", "half a round", "kept as one of the last"],
)
def test_a_tail_that_is_to_stay_is_not_dropped(bodies: list[Body], more: list[Body], options: dict[str, Any]) -> None:
    assert left(bodies, more, **options) is None


@pytest.mark.parametrize("options", [{"tail": "drop"}, {"mode": "openhands"}, {"mode": "refer"}])
def test_a_tail_that_the_model_must_answer_cannot_be_asked_to_go(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"'tail=drop'.*'judge=after'.*'judge=inline'"):
        strategy(**options, judge="inline")
    assert strategy(**{**options, "judge": "inline", "tail": "keep"}).inline
