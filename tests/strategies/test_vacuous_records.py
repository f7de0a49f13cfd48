"""A record that says nothing never stands for history, whichever strategy asked for it."""

import json
from typing import Any

import pytest

from strategies import TABLE
from strategies.core.budget import Budget
from strategies.core.effects import Answer, Effect
from strategies.core.errors import Declined
from strategies.core.replacement import previous_text
from strategies.core.requirement import Requirement
from strategies.core.view import View
from tests.strategies.driving import attempted, judged_session, stages_of
from tests.support.transcripts import agent, chat, view_of

BUDGET = Budget.of(8_000)
STRATEGIES = [name for name in TABLE if stages_of(name)[0].asks and name != "native"]  # a vendor's text is opaque
TEXTS = [
    "Summary generation failed.",
    "摘要生成失败。",
    "N/A",
    "[summary]",
    "<summary here>",
    "I was unable to summarize this.",
    "Unable to summarize the conversation.",
    "我无法总结这段对话。",
    "Done.",
    "## Goal\nN/A\n## Done\nnone\n## Open\n[open tasks]",
]


def written(name: str, text: str) -> str:
    """The answer of a summarizer whose record is this text, in the form that a strategy asks for."""
    if name == "rolling":
        return json.dumps({"summary": text, "memories": []}, ensure_ascii=False)
    return f"<summary>{text}</summary>" if name == "dynacontext" else text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in STRATEGIES), ("dynacontext", {"summary_format": "sections"})],
    ids=lambda each: each if isinstance(each, str) else "-".join(each),
)
def test_a_vacuous_record_is_refused_and_the_fallback_works(name: str, options: dict[str, Any], text: str) -> None:
    view = view_of(agent(30, size=250))

    def reply(_: Effect) -> Answer:
        return Answer(written(name, text))

    stages: dict[str, Any] = {name.replace("-", "_"): options}
    outcome = attempted(Requirement.HARD, name, view, BUDGET, reply, None, **stages)
    assert outcome.failure in ("summary-empty", "summary-refused")
    assert outcome.stages[0] == ("semantic" if name == "semantic" else "extract")
    assert outcome.view.tokens <= BUDGET.usable
    assert_not_said(text, outcome.view)


@pytest.mark.parametrize("text", TEXTS)
def test_a_vacuous_record_after_a_yes_leaves_the_view_as_it_was(text: str) -> None:
    view = view_of(chat(12, size=200))

    def reply(_: Effect) -> Answer:
        return Answer(written("dynacontext", text))

    with pytest.raises(Declined, match=r"summary-(empty|refused)"):
        attempted(Requirement.PREPARE, "dynacontext", view, Budget.of(16_000), reply, judged_session(view))


def assert_not_said(text: str, view: View) -> None:
    assert text not in previous_text(view)
    assert not any(text in item.message.text for item in view.items)
