"""`semantic`: the record that a model writes, or rules where the model fails, and its metadata."""

import re
from typing import Any

import pytest

from strategies.core.budget import Budget
from strategies.core.effects import SUMMARIZER, Answer, Ask, Effect, Failure, Result
from strategies.core.protocol import SessionFacts
from strategies.core.replacement import previous_record, previous_text
from strategies.core.requirement import Requirement
from strategies.core.summary import TAG_TOKENS
from strategies.core.view import View
from strategies.prompts import prompt, prompt_digest
from strategies.semantic import SemanticOptions
from tests.strategies.driving import attempted, condensed, failing, later, plan_of, questions, texts
from tests.strategies.test_semantic import ROOMY, after, rounds_of, semantic
from tests.support.transcripts import (
    Body,
    agent,
    assistant,
    bodies_of,
    call,
    step,
    tool,
    transcript_of,
    user,
    view_of,
    words,
)

CHINESE = ("任务上下文:", "关键进展:", "技术状态:", "待处理项:", "重要发现:")
ENGLISH = ("Task context:", "Key progress:", "Technical state:", "Open items:", "Important findings:")
NOBODY = SessionFacts()


def question(bodies: list[Body] | View, session: SessionFacts = NOBODY, budget: Budget = ROOMY, **options: Any) -> Ask:
    """What a model is asked first."""
    view = bodies if isinstance(bodies, View) else view_of(bodies)
    asked = questions(semantic(**options).condense(view, budget, session))[0]
    assert isinstance(asked, Ask)
    return asked


def test_a_model_is_asked_once_for_the_five_sections() -> None:
    asked = question(agent(60))
    assert asked.role == SUMMARIZER
    assert all(section in asked.system for section in ENGLISH)
    assert question(agent(60), memory_cards=False).max_tokens <= 2_000
    assert question(agent(100), summary_max_tokens=150, memory_cards=False).max_tokens == 150 + TAG_TOKENS


def test_in_a_chinese_conversation_the_sections_and_the_question_are_chinese() -> None:
    asked = question(agent(60, task="请帮我修复解析器里的错误"))
    assert all(section in asked.system for section in CHINESE)
    assert asked.user.endswith("现在写记录。")
    assert asked.system.split("{")[0].startswith(prompt("semantic-zh").split("{")[0][:40])


def test_only_what_is_forgotten_is_shown_with_the_task() -> None:
    bodies = agent(60)
    bodies[32:34] = [assistant(None, call("c15", "bash", {"command": "git push"})), tool("c15", "Push completed")]
    shown = question(bodies).user
    assert "Fix the bug in the parser." in shown
    assert '"step 14"' in shown
    assert "git push" not in shown
    assert '"step 59"' not in shown


def test_the_record_says_how_many_messages_it_stands_for() -> None:
    view = after(agent(60))
    assert f"The {121 - len(view.items) + 1} earlier messages" in texts(view)[1]
    grown = [*agent(60), *(body for i in range(60, 110) for body in step(i))]
    again = after(later(view, transcript_of(grown)))
    assert f"The {221 - len(again.items) + 1} earlier messages" in texts(again)[1]


def test_of_a_long_event_the_model_is_shown_both_ends_by_kind() -> None:
    bodies = agent(60)
    bodies[4:6] = [assistant("a" * 3_000, call("c1", "bash", {"command": "b" * 3_000})), tool("c1", "c" * 3_000)]
    shown = question(bodies, max_event_length=1_000).user
    longest = {letter: max(map(len, re.findall(f"{letter}+", shown))) for letter in "abc"}
    assert longest == {"a": 500, "b": 123, "c": 250}


def test_kept_events_are_never_cut() -> None:
    bodies = agent(60)
    bodies[32:34] = [user("please: error " + "x" * 20_000), assistant("git push")]
    assert bodies[32] in bodies_of(after(bodies, max_event_length=200))


def test_words_and_tools_are_options() -> None:
    bodies = agent(60)
    bodies[32:34] = [assistant(None, call("c15", "tinker")), tool("c15", "the kettle boils\n" + words(30))]
    assert 15 not in rounds_of(after(bodies))
    assert 15 in rounds_of(after(bodies, error_words="kettle; 水壶"))
    assert 15 in rounds_of(after(bodies, success_words="Kettle"))
    assert 15 in rounds_of(after(bodies, operation_words="kettle"))
    assert 15 not in rounds_of(after(bodies, operation_words="kett"))
    assert 15 in rounds_of(after(bodies, editing_tools="tinker"))
    assert 15 not in rounds_of(after(bodies, instruction_words="kettle"))


# --- where the model fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Failure("timeout"), "summary-timeout"),
        (Answer("", called_tools=True), "summary-called-tools"),
        (Answer("short", finish_reason="length"), "summary-cut-short"),
        (Answer(""), "summary-empty"),
        (Answer(words(90_000)), "summary-too-long"),
        (Answer("I'm sorry, but I can't help with that."), "summary-refused"),
        (Answer('<message index="0" role="user">'), "summary-echo"),
    ],
)
def test_rules_write_the_record_and_the_reason_is_said(result: Result, reason: str) -> None:
    def reply(effect: Effect) -> Result:
        return result

    bodies = agent(60)
    plan = plan_of(semantic(), view_of(bodies), ROOMY, reply)
    assert (plan.metadata["fallback"], plan.metadata["fallback_reason"], plan.reason) == (True, reason, reason)
    outcome = attempted(Requirement.HARD, "semantic", view_of(bodies), ROOMY, reply)
    assert (outcome.stages, outcome.failure) == (["semantic"], reason)
    record = previous_text(outcome.view)
    assert "tool calls" in record
    assert "sorry" not in record


def test_the_rules_count_kinds_and_tell_what_was_done_and_what_failed() -> None:
    bodies = agent(60)
    bodies[6:8] = [
        assistant(None, call("c2", "bash", {"command": "pytest -q"})),
        tool("c2", "a\nsrc/a.py:3: TypeError: bad\n" + words(30)),
    ]
    bodies[10:10] = [user("It broke. Never touch tests/.")]
    bodies[41:41] = [user("Go on.")]
    bodies.append(user("Last"))
    view = condensed("semantic", view_of(bodies), ROOMY.with_goal(300), failing)
    record, ledger = previous_record(view)
    assert record.startswith("user messages 1, tool calls 59, tool results 59\n\n")
    assert "Errors:\n>> bash: src/a.py:3: TypeError: bad" in record
    assert "Looked at:\n>> bash: " in record
    assert ledger.said == ("- It broke.", "- Never touch tests/.")


def test_the_rules_write_chinese_in_a_chinese_conversation() -> None:
    view = condensed("semantic", view_of(agent(60, task="请帮我修复解析器里的错误")), ROOMY, failing)
    assert previous_text(view).startswith("工具调用 ")
    assert "查看过：" in previous_text(view)


def test_an_earlier_record_stays_in_the_rules_record() -> None:
    bodies = agent(60)
    view = after(bodies)
    grown = [*bodies, *(body for i in range(60, 110) for body in step(i))]
    again = condensed("semantic", later(view, transcript_of(grown)), ROOMY, failing)
    assert previous_text(again).startswith(previous_text(view))


# --- what is said -----------------------------------------------------------------------------------------------


def test_the_metadata_has_the_documents_metrics() -> None:
    bodies = agent(60)
    view = view_of(bodies)
    record = f"Task context: mend the parser in src/a.py. Done: its tests were read and run. {words(30)}"
    told = plan_of(semantic(), view, ROOMY, lambda _: Answer(f"<summary>{record}</summary>", tokens=777)).metadata
    kept = len(after(bodies).items) - 1
    metrics = told["compression_metrics"]
    assert metrics == {
        "events_compressed": 121 - kept,
        "compression_ratio": metrics["compression_ratio"],
        "llm_tokens_used": 777,
    }
    assert 0 < metrics["compression_ratio"] < 0.02
    assert {key: value for key, value in told.items() if key != "compression_metrics"} == {
        "events": 121,
        "target_size": 30,
        "scored": True,
        "fallback": False,
        "fallback_reason": None,
        "summary_calls": 1,
        "prompt_digest": prompt_digest("semantic", "memory"),
    }


def test_tokens_of_a_refused_answer_are_counted() -> None:
    told = plan_of(semantic(), view_of(agent(60)), ROOMY, lambda _: Answer("", tokens=55)).metadata
    assert told["compression_metrics"]["llm_tokens_used"] == 55
    assert told["summary_calls"] == 1


def test_the_defaults_are_the_documents() -> None:
    options = SemanticOptions()
    assert (options.max_size, options.keep_first, options.max_compression_ratio) == (100, 1, 0.3)
    assert (options.max_event_length, options.enable_semantic_analysis) == (8_000, True)
