"""`dynacontext`: how the record is asked for, and its metadata."""

import json
from dataclasses import replace
from typing import Any

import pytest

from strategies.core.budget import Budget
from strategies.core.effects import Answer, Ask, Effect, Failure, Result
from strategies.core.errors import AnswerRefused
from strategies.core.plan import apply
from strategies.core.protocol import SessionFacts
from strategies.core.replacement import previous_text
from strategies.core.summary import TAG_TOKENS
from strategies.prompts import prompt_digest
from tests.strategies.driving import finish, judged_session, later, questions, verdict_on
from tests.strategies.test_dynacontext import ROOMY, condensed, plan, strategy, voted
from tests.support.transcripts import agent, chat, step, transcript_of, view_of, words

TEXT = "The parser in src/a.py was mended as the user wanted, and all of its tests pass."


def answering(*answers: Result) -> tuple[list[Ask], Any]:
    """Questions so far, and a reply that gives each of the answers once."""
    asked: list[Ask] = []

    def reply(effect: Effect) -> Result:
        assert isinstance(effect, Ask)
        asked.append(effect)
        return answers[len(asked) - 1]

    return asked, reply


@pytest.mark.parametrize(
    "rubbish",
    [
        Answer(TEXT),
        Answer(f"<summary>{TEXT}"),
        Answer(f"<SUMMARY>{TEXT}</SUMMARY>"),
        Answer("<summary></summary>"),
        Answer(f"<summary>{words(1_900)}</summary>"),
        Answer(f"<summary>{TEXT}</summary>", finish_reason="length"),
        Answer(f"<summary>{TEXT}</summary>", called_tools=True),
    ],
)
def test_a_summary_is_asked_for_up_to_three_times(rubbish: Answer) -> None:
    view = view_of(agent(8, size=20))
    asked, reply = answering(rubbish, rubbish, Answer(f"Here:\n<summary>\n{TEXT}\n</summary>\nDone."))
    after = condensed(view, judged_session(view), reply)
    assert previous_text(after) == TEXT
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (Answer(TEXT), "summary-untagged"),
        (Answer("Summary generation failed."), "summary-empty"),
        (Answer(f"<summary>{TEXT}", finish_reason="length"), "summary-cut-short"),
        (Answer("<summary> </summary>"), "summary-empty"),
        (Answer("<summary>I'm sorry, I can't.</summary>"), "summary-refused"),
        (Answer(f"<summary>{words(3_000)}</summary>"), "summary-too-long"),
        (Answer(f"<summary>{TEXT}</summary>", called_tools=True), "summary-called-tools"),
    ],
)
def test_after_three_tries_history_stays_and_the_last_answer_says_why(last: Answer, reason: str) -> None:
    asked, reply = answering(Answer(TEXT), Answer(TEXT), last)
    view = view_of(agent(8, size=100))
    with pytest.raises(AnswerRefused) as refused:
        plan(view, judged_session(view), reply)
    assert (refused.value.reason, len(asked)) == (reason, 3)


def test_a_model_that_fails_is_not_asked_again() -> None:
    asked, reply = answering(Failure("rate-limited"))
    view = view_of(agent(8))
    with pytest.raises(AnswerRefused, match="summary-rate-limited"):
        plan(view, judged_session(view), reply)
    assert len(asked) == 1


def test_a_history_that_is_shown_in_parts_has_three_tries_for_each() -> None:
    budget = Budget.of(3_000)
    view = view_of(agent(60, size=200))
    record = f"{TEXT} {words(30)}"
    good_part = Answer(f"<summary>{record}</summary>")
    replies = {0: Answer(TEXT), 2: Answer(TEXT)}
    asked: list[Effect] = []

    def reply(effect: Effect) -> Result:
        asked.append(effect)
        return replies.get(len(asked) - 1, good_part)

    made = finish(strategy().condense(view, budget, judged_session(view)), reply)
    parts = len(set(map(id, asked)))
    assert parts > 1
    assert len(asked) == parts + 2
    assert previous_text(apply(view, made)) == record


def test_summary_format_sections_asks_for_three_blocks_and_puts_them_under_headings() -> None:
    blocks = (
        "<history_detail>\n1. Read a.py.\n</history_detail>\n"
        "<history_summary>Mended.</history_summary>\n<future_direction>Run tests.</future_direction>"
    )
    asked, reply = answering(Answer(f"<summary>\n{blocks}\n</summary>"))
    view = view_of(agent(8))
    after = condensed(view, judged_session(view), reply, summary_format="sections")
    assert previous_text(after) == (
        "History detail:\n1. Read a.py.\nHistory summary:\nMended.\nFuture direction:\nRun tests."
    )
    assert all(f"<{name}>" in asked[0].system for name in ("history_detail", "history_summary", "future_direction"))
    assert "fold it into one single item" in asked[0].system


@pytest.mark.parametrize(
    ("sections", "record"),
    [
        pytest.param(
            "First.<history_detail>1. did</history_detail><history_summary> It did. </history_summary>"
            "<future_direction>go</future_direction>Last.",
            "First.\nHistory detail:\n1. did\nHistory summary:\nIt did.\nFuture direction:\ngo\nLast.",
            id="tags on one line",
        ),
        pytest.param(
            f"<history_summary>{TEXT}</history_summary>", f"History summary:\n{TEXT}", id="sections are missing"
        ),
    ],
)
def test_each_section_has_lines_of_its_own(sections: str, record: str) -> None:
    _, reply = answering(Answer(f"<summary>{sections}</summary>"))
    view = view_of(agent(8))
    assert previous_text(condensed(view, judged_session(view), reply, summary_format="sections")) == record


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, True),
        ({"include_tool_content": False}, False),
        ({"mode": "refer"}, False),
        ({"mode": "refer", "include_tool_content": True}, True),
        ({"mode": "openhands"}, True),
    ],
)
def test_tool_results_are_summarized_unless_left_out(options: dict[str, Any], shown: bool) -> None:
    bodies = agent(8)
    body = next(json.dumps(each["content"])[1:-1] for each in bodies if each["role"] == "tool")
    view = view_of(bodies)
    for session in (judged_session(view), SessionFacts(verdict=verdict_on(view), continue_view=True)):
        (asked,) = questions(strategy(**options).condense(view, ROOMY, session))
        assert isinstance(asked, Ask)
        text = (asked.view or asked.user).replace("\n", "\\n")
        assert (body in text) is shown
        assert ("[a result of " in text) is not shown
        assert "step 3" in text


# --- what it says -----------------------------------------------------------------------------------------------


def test_the_metadata_has_the_documents_fields() -> None:
    view = view_of(chat(6))
    metadata = {"judge_metadata": {"yes_votes": 3}, "judge_votes": [{"decision": "YES"}]}
    verdict = replace(verdict_on(view), metadata=metadata)
    assert plan(view, SessionFacts(verdict=verdict), voting_k=3, early_turns=2).metadata == {
        "trigger": "judge",
        "hard_trigger": False,
        **metadata,
        "judged_message_count": 13,
        "tail_exclusion_count": 0,
        "dropped_judged_count": 0,
        "dropped_judged_event_ids": [],
        "dropped_drift_count": 0,
        "dropped_drift_event_ids": [],
        "summary_candidate_count": 10,
        "summary_candidate_event_ids": list(range(1, 11)),
        "keep_first": 1,
        "keep_last": 0,
        "early_turns": 2,
        "voting_k": 3,
        "turns_since_reset": 7,
        "mode": "chat",
        "promptDigest": prompt_digest("dynacontext", "memory"),
    }


def test_the_question_has_the_history_in_a_fence_and_the_earlier_record() -> None:
    bodies = agent(8, size=120)
    view = later(voted(bodies), transcript_of([*bodies, *(body for i in range(8, 14) for body in step(i, 120))]))
    made = strategy(summary_max_tokens=300, memory_cards=False)
    (asked,) = questions(made.condense(view, ROOMY, judged_session(view)))
    assert isinstance(asked, Ask)
    assert asked.user.startswith("<earlier_record>\nGoal: mend the parser.")
    assert "step 9" in asked.user
    assert "<summary>" in asked.system
    assert asked.max_tokens == 300 + TAG_TOKENS
