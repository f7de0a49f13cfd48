"""The importance of a message: the table of the source document, with the departures that docs/strategies.md lists."""

from typing import Any

import pytest

from strategies.core.messages import ToolCall
from strategies.keywords import keywords
from strategies.selection import EventKind, MessageImportanceScorer, Wording
from tests.support.transcripts import Body, assistant, call, message, tool, user, words

SCORER = MessageImportanceScorer(
    Wording(*(keywords(name) for name in ("error", "instruction", "success", "operation", "editing_tool"))), 8_000
)
SHELL = ToolCall("c", "bash", "{}")
EDITOR = ToolCall("c", "str_replace_editor", "{}")
HOUR, DAY = 3_600.0, 86_400.0


def score(body: Body, answers: ToolCall | None = None, age: float | None = None) -> float:
    return SCORER.score(message(body), answers, age)


# --- the three worked examples ----------------------------------------------------------------------------------


def test_a_user_who_asks_for_help_with_an_error_is_worth_most() -> None:
    assert score(user("请帮我修复这个 TypeError: 'NoneType' object is not subscriptable 错误")) == 0.9


def test_a_one_line_outcome_scores_as_its_call_and_success() -> None:
    assert score(tool("c", "Successfully committed changes to feature branch"), SHELL) == 0.45


def test_a_line_of_a_log_is_worth_least() -> None:
    assert score(tool("c", "DEBUG: Loading configuration file"), SHELL) == 0.15


# --- base -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "base"),
    [
        (user("The sky is blue."), EventKind.USER, 0.4),
        (assistant(None, call("c", "str_replace_editor")), EventKind.EDIT, 0.3),
        (assistant(None, call("c", "bash", {"command": "ls"})), EventKind.CALL, 0.25),
        (assistant("The sky is blue."), EventKind.TEXT, 0.25),
        (tool("c", "one\ntwo"), EventKind.RESULT, 0.15),
        (user("<returncode>0</returncode>\n<output>\na\n</output>"), EventKind.RESULT, 0.15),
        ({"role": "assistant", "function_call": {"name": "write_file", "arguments": "{}"}}, EventKind.EDIT, 0.3),
    ],
)
def test_the_base_is_that_of_the_kind(body: Body, kind: EventKind, base: float) -> None:
    assert SCORER.kind(message(body)) is kind
    assert score(body) == base


@pytest.mark.parametrize("name", ["Edit", "write_file", "mcp__files__edit_file", "fs.write_file", "tools:apply_patch"])
def test_an_editing_tool_is_known_by_the_last_part_of_its_name(name: str) -> None:
    assert SCORER.kind(message(assistant(None, call("c", name)))) is EventKind.EDIT


def test_one_editing_call_among_several_makes_an_edit() -> None:
    assert score(assistant(None, call("a", "bash"), call("b", "write"))) == 0.3


def test_a_result_of_one_line_counts_with_its_call() -> None:
    assert score(tool("c", "3 files"), SHELL) == 0.25
    assert score(tool("c", "written"), EDITOR) == 0.3
    assert score(tool("c", "3 files\n2 folders"), SHELL) == 0.15
    assert score(tool("c", "x" * 201), SHELL) == 0.15
    assert score(tool("c", "3 files")) == 0.15


# --- bonuses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bonus"),
    [
        ("a TypeError came", 0.3),
        ("it FAILED", 0.3),
        ("Traceback (most recent call last)", 0.3),
        ("运行失败", 0.3),
        ("Successfully done", 0.2),
        ("all is COMPLETED", 0.2),
        ("已经成功", 0.2),
        ("git status", 0.25),
        ("then npm, then git push", 0.25),
        ("请求部署代码", 0.25),
        ("now commit代码", 0.25),
        ("it is committed to gitignore", 0.0),
        ("pushing on", 0.0),
        ("git failed, then success", 0.6499),
        ("the sky is blue", 0.0),
    ],
)
def test_words_in_english_and_chinese_add_their_bonus(text: str, bonus: float) -> None:
    assert score(assistant(text)) == pytest.approx(min(0.25 + bonus, 0.9), abs=1e-3)


@pytest.mark.parametrize("text", ["Please look", "can you look", "Help me", "请看", "帮我", "需要一个"])
def test_what_a_user_asks_for_adds_most(text: str) -> None:
    assert score(user(text)) == 0.8


def test_what_a_tool_prints_is_no_instruction() -> None:
    assert score(tool("c", "Please help me\nplease")) == 0.15


def test_the_arguments_of_a_call_are_searched_too() -> None:
    assert score(assistant(None, call("c", "bash", {"command": "git push"}))) == 0.5


# --- length, logs, time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("characters", "expected"), [(1_000, 0.4), (1_001, 0.32)])
def test_a_body_over_an_eighth_of_the_longest_counts_less(characters: int, expected: float) -> None:
    assert score(user("x" * characters)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-01 10:00:00 TRACE enter", 0.2),
        ("[DEBUG] a\n[DEBUG] b\nc", 0.2),
        ("a\nb\nDEBUG c", 0.25),
        ("set DEBUG_MODE and be done", 0.25),
    ],
)
def test_what_looks_like_a_log_counts_less(text: str, expected: float) -> None:
    assert score(assistant(text)) == expected


def test_of_a_long_body_both_ends_are_searched() -> None:
    assert score(assistant("x" * 9_000)) == 0.2
    assert score(assistant("error " + "x" * 9_000)) == 0.5
    assert score(assistant("x" * 9_000 + " error")) == 0.5
    assert score(assistant("x" * 5_000 + " error " + "x" * 5_000)) == 0.2


@pytest.mark.parametrize(
    ("age", "added"), [(0, 0.1), (HOUR, 0.1), (HOUR + 1, 0.05), (DAY, 0.05), (DAY + 1, 0.0), (None, 0.0)]
)
def test_what_is_fresh_counts_more_and_unknown_time_adds_nothing(age: float | None, added: float) -> None:
    assert score(user("The sky is blue."), age=age) == pytest.approx(0.4 + added)


@pytest.mark.parametrize("body", [user(""), assistant(None), tool("c", None), user([{"type": "image_url"}])])
def test_a_message_without_text_is_scored(body: Body) -> None:
    assert 0.15 <= score(body) <= 0.9


def test_a_list_without_words_finds_nothing() -> None:
    scorer = MessageImportanceScorer(Wording((), (), (), (), ()), 8_000)
    assert scorer.score(message(user("please git push: error, success"))) == 0.4


def test_the_score_of_a_huge_body_reads_only_its_ends() -> None:
    huge: Any = words(200_000)
    assert score(tool("c", huge)) == 0.15
