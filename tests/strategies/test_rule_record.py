"""The record that rules make where a model fails."""

import pytest

from strategies.keywords import keywords
from strategies.rule_record import CHINESE, ENGLISH, MessageImportanceScorer, Names, Wording, rule_record
from tests.support.transcripts import WORDS, Body, assistant, call, message, tool, user, words

SCORER = MessageImportanceScorer(
    Wording(*(keywords(name) for name in ("error", "instruction", "success", "operation", "editing_tool"))), 8_000
)
HISTORY = [
    user("Fix it.\nNever touch tests/."),
    assistant("I look.", call("a", "read_file", {"path": "src/a.py"})),
    tool("a", "import re\nraise TypeError('bad')\n" + words(50)),
    assistant(None, call("b", "write_file", {"path": "src/a.py"})),
    tool("b", "Successfully written"),
    assistant("That is all."),
]


def record(bodies: list[Body] = HISTORY, earlier: str = "", cap: int = 500, names: Names = ENGLISH) -> str:
    return rule_record([message(body) for body in bodies], earlier, cap, names, SCORER, WORDS)


def test_the_sections_are_the_documents_in_their_order() -> None:
    assert record() == (
        "Task context:\n- User: Fix it.\n- User: Never touch tests/.\n\n"
        "Key progress:\n- Success: Successfully written\n\n"
        "Technical state:\n"
        "- user messages 1, edits 1, tool calls 1, assistant messages 1, tool results 2\n"
        "- Files: src/a.py\n\n"
        "Important findings:\n- Error: raise TypeError('bad')"
    )


@pytest.mark.parametrize(
    ("said", "names", "items"),
    [
        (
            ["TODO: add a changelog entry.", "Never touch tests/."],
            ENGLISH,
            "Open items:\n- TODO: add a changelog entry.",
        ),
        (["待办：补充文档。", "待办：修复测试。"], CHINESE, "待处理项:\n- 待办：修复测试。\n- 待办：补充文档。"),
    ],
)
def test_open_items_are_the_tasks_that_the_user_gave_newest_first(said: list[str], names: Names, items: str) -> None:
    text = record([*map(user, said), tool("a", "error 1")], names=names)
    assert items in text.split("\n\n")
    assert text.index(names.state) < text.index(names.open) < text.index(names.findings)


def test_in_chinese_its_names_are_chinese() -> None:
    text = record([user("请修复"), tool("a", "运行失败\n第二行"), tool("b", "成功")], names=CHINESE)
    assert text == (
        "任务上下文:\n- 用户: 请修复\n\n关键进展:\n- 成功: 成功\n\n"
        "技术状态:\n- 用户消息 1, 工具结果 2\n\n重要发现:\n- 错误: 运行失败"
    )


def test_an_event_of_both_kinds_is_an_error() -> None:
    text = record([tool("a", "success\nerror " + "x" * 200)])
    assert "Key progress" not in text
    assert f"- Error: error {'x' * 94}..." in text


def test_the_newest_errors_come_first_and_each_once() -> None:
    text = record([tool(f"c{i}", f"error {i % 3}") for i in range(9)])
    assert text.split("Important findings:\n")[1].splitlines() == [
        "- Error: error 2",
        "- Error: error 1",
        "- Error: error 0",
    ]


@pytest.mark.parametrize("cap", [48, 80, 150, 400])
@pytest.mark.parametrize("earlier", ["", "Goal: mend.\n" + words(300)])
def test_it_fits_its_cap_and_is_never_empty(cap: int, earlier: str) -> None:
    long = [user(words(100)), *HISTORY, *(tool(f"c{i}", f"error {i}: {words(20)}") for i in range(30))]
    text = record(long, earlier, cap)
    assert 0 < WORDS.text(text) <= cap
    assert not earlier or text.startswith("Goal: mend.")
