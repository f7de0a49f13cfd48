"""`extract`: a record made by rules, which keeps the user's words."""

from typing import Any

import pytest

from strategies.core.budget import Budget
from strategies.core.effects import Answer, Effect
from strategies.core.errors import Declined
from strategies.core.ledger import SAID_HEADING
from strategies.core.plan import apply
from strategies.core.replacement import OPENING, previous_record, previous_text
from strategies.core.requirement import Requirement
from strategies.core.view import View
from tests.strategies.driving import attempted, condensed, later, plan_of, stages_of, texts
from tests.support.transcripts import (
    WORDS,
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

BUDGET = Budget.of(8_000)


def extracted(bodies: list[Body], goal: int = 0, **options: Any) -> View:
    return condensed("extract", view_of(bodies), BUDGET.with_goal(goal), **options)


WORK = [
    user("Fix the parser."),
    *step(0, 30, "read_file", {"path": "src/a.py"}),
    *step(1, 30, "read_file", {"path": "src/a.py"}),
    assistant("I found the cause."),
    user("Never touch tests/.\nUse Python 3.11."),
    assistant(None, call("e", "bash", {"command": "pytest"})),
    tool("e", "E   TypeError: no parser\nFAILED tests/test_a.py - 1 of 2\n"),
    assistant("The parser is mended, two tests are left."),
    user("Go on."),
    assistant("ok"),
    user("Well?"),
]


def test_a_view_is_cut_to_its_depth_below_the_goal() -> None:
    talk = chat(60, size=60)
    assert extracted(talk, goal=4_000).tokens <= 0.3 * BUDGET.usable
    assert 0.3 * BUDGET.usable < extracted(talk, goal=4_000, depth=1).tokens <= 4_000


def test_a_deep_cut_that_cannot_be_made_leaves_the_goal() -> None:
    talk = [*chat(8, size=60)[:-1], user(words(2_500))]
    assert 0.3 * BUDGET.usable < extracted(talk, goal=4_000).tokens <= 4_000


def test_the_record_says_what_was_done_what_failed_and_what_was_said() -> None:
    text = replacement_of(extracted(WORK))
    assert "What was done:\n>> bash: pytest" in text
    assert "Errors:\n>> bash: E   TypeError: no parser\n>> bash: FAILED tests/test_a.py - 1 of 2\n" in text
    assert "Looked at:\n>> read_file: src/a.py" in text
    assert "What the assistant said:\n> I found the cause.\n> The parser is mended, two tests are left." in text
    assert f"{SAID_HEADING}\n- Never touch tests/.\n- Use Python 3.11.\n- Go on." in text


def test_a_second_record_has_one_section_for_each_kind_of_line() -> None:
    first = extracted(WORK)
    more = [assistant("We decided to ship it."), user("Fine then."), assistant("ok"), user("And now?")]
    text = replacement_of(condensed("extract", later(first, transcript_of([*WORK, *more])), BUDGET.with_goal(0)))
    assert "What the assistant said:\n> I found the cause.\n" in text
    assert "> We decided to ship it." in text
    headings = ("What was done:", "Errors:", "Looked at:", "What the assistant said:", SAID_HEADING)
    assert [text.count(each) for each in (*headings, "TypeError: no parser")] == [1] * 6


def test_a_ledger_leaves_room_for_what_was_done() -> None:
    names = " ".join(f"src/module_{number}/file_{number}.py" for number in range(400))
    work = [user("Go."), assistant("I fixed the lexer."), user(names), assistant("ok"), user("On."), assistant("ok")]
    assert "> I fixed the lexer." in previous_text(extracted([*work, user("Well?")]))


def test_in_a_small_window_rules_have_more_than_a_tenth_of_it() -> None:
    rules = [f"Never open door {number} before the alarm at gate {number} is off." for number in range(60)]
    bodies: list[Body] = [user("Go."), assistant("ok"), user("\n".join(rules)), *chat(40, size=80)]
    budget = Budget.of(8_192)
    view = condensed("extract", view_of(bodies), budget)
    assert sum(rule in replacement_of(view) for rule in rules) > 40
    assert budget.window / 10 < view.items[view.replacement or 0].message.tokens <= budget.replacement_cap
    assert view.tokens <= budget.goal


def replacement_of(view: View) -> str:
    return view.items[view.replacement or 0].message.text


def test_each_sentence_of_the_user_has_one_place() -> None:
    peaked, rule = "Load test peaked.", "Never touch tests/."
    bodies: list[Body] = [user("Go."), assistant("Yes."), user(f"{peaked} {rule}"), assistant("So."), user(peaked)]
    view = extracted([*bodies, *chat(3, size=60)[1:]])
    assert [replacement_of(view).count(each) for each in (peaked, rule)] == [1, 1]
    grown = transcript_of([*bodies, *chat(3, size=60)[1:], assistant("a"), user(peaked), *chat(3, size=60)[1:]])
    again = condensed("extract", later(view, grown), BUDGET.with_goal(0))
    assert [replacement_of(again).count(each) for each in (peaked, rule)] == [1, 1]


def test_what_was_said_of_a_value_stands_whole_and_in_order() -> None:
    said = ["Take one pill at 8:00.", "Our deadline is Friday.", "Sorry, Tuesday.", "Take one pill at 20:00."]
    bodies = [user("Go."), assistant("Yes.")]
    for each in said:
        bodies += [user(each), assistant("Noted.")]
    text = replacement_of(extracted([*bodies, *chat(3, size=60)]))
    assert f"- (3) {said[0]}\n- (9) {said[3]}\n" in text
    assert all(each in text for each in said)
    assert "(was" not in text


def test_what_stays_verbatim_is_not_in_the_record() -> None:
    view = extracted(WORK)
    assert "Fix the parser" not in previous_text(view)
    assert "Well?" not in previous_text(view)
    assert texts(view)[0] == "Fix the parser."
    assert texts(view)[-1] == "Well?"


def test_the_shortest_prefix_that_meets_the_goal_is_condensed() -> None:
    bodies = chat(20, size=100)
    whole = view_of(bodies).tokens
    short, long = extracted(bodies, whole - 800), extracted(bodies, whole - 1_600)
    assert short.covered_count < long.covered_count
    assert short.tokens <= whole - 800
    assert long.tokens <= whole - 1_600


def test_an_earlier_record_is_carried_forward_ahead_of_it_all() -> None:
    bodies = chat(12, size=100)
    first = condensed("half-window", view_of(bodies), Budget.of(2_500))
    assert previous_text(first).startswith("Goal: mend the parser.")
    grown = later(
        first, transcript_of([*bodies, assistant("a"), user("Use tabs."), assistant("b"), user("c"), assistant("d")])
    )
    second = condensed("extract", grown, BUDGET.with_goal(0))
    assert previous_text(second).startswith("Goal: mend the parser.")
    assert "- Use tabs." in previous_record(second)[1].said


def test_an_earlier_record_of_one_paragraph_is_cut_and_not_lost() -> None:
    prose = "目标是修复解析器，" + "文件已经读过，" * 200 + "最后运行测试。"

    def reply(effect: Effect) -> Answer:
        return Answer(f"<summary>{prose}</summary>")

    bodies = chat(40, size=200)
    first = condensed("half-window", view_of(bodies), Budget.of(40_000), reply)
    second = previous_text(condensed("extract", first, Budget.of(8_000).with_goal(0)))
    assert second.startswith("目标是修复解析器")
    assert "最后运行测试。" in second


def test_a_record_of_a_larger_window_is_cut_at_last() -> None:
    """A client that changes to a model with a small window brings a record of a tenth of the large one."""

    def reply(effect: Effect) -> Answer:
        facts = "\n".join(f"Fact {i}: {words(20)}" for i in range(80))
        return Answer(f"<summary>{facts}</summary>")

    bodies = chat(60, size=100)
    large = condensed("half-window", view_of(bodies), Budget.of(30_000).with_goal(0), reply)
    small = Budget.of(1_500)
    assert large.tokens > small.usable
    view = attempted(Requirement.HARD, "half-window", large, small).view
    assert view.tokens <= small.usable
    assert previous_text(view).startswith("Fact 0")


def test_extracting_again_takes_more_history_in_and_never_only_cuts_the_record() -> None:
    bodies = chat(20, size=100)
    first = condensed("extract", view_of(bodies), BUDGET.with_goal(1_500))
    again = condensed("extract", first, BUDGET.with_goal(first.tokens))
    assert again.covered_count > first.covered_count


@pytest.mark.parametrize("cap", [100, 300])
def test_the_record_keeps_within_its_cap(cap: int) -> None:
    bodies = [user("task"), *(body for i in range(30) for body in (user(f"Rule {i}: {words(20)}"), *step(i, 50)))]
    after = extracted(bodies, max_tokens=cap)
    assert 0 < WORDS.text(previous_text(after)) <= cap


@pytest.mark.parametrize(
    "bodies", [chat(0), chat(1), agent(1), agent(0)], ids=["asked", "answered", "one round", "task alone"]
)
def test_nothing_to_extract_is_said(bodies: list[Body]) -> None:
    with pytest.raises(Declined) as declined:
        extracted(bodies)
    assert declined.value.reason == "nothing-to-extract"


def test_a_window_without_room_for_a_record_has_none() -> None:
    with pytest.raises(Declined, match="nothing-to-extract"):
        condensed("extract", view_of(chat(10)), Budget.of(400).with_goal(0))


def test_its_metadata_counts_what_the_record_stands_for() -> None:
    (strategy,) = stages_of("extract")
    view = view_of(WORK)
    plan = plan_of(strategy, view, BUDGET.with_goal(0))
    assert plan.metadata == {"extractedMessageCount": 10}
    replacement = apply(view, plan).replacement
    assert replacement is not None
    assert texts(apply(view, plan))[replacement].startswith(f"{OPENING} The 10 earlier messages")
