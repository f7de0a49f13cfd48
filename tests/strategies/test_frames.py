"""What the proxy writes into a Chinese conversation is Chinese, and a record in use keeps its language."""

import pytest

from strategies import TABLE
from strategies.core.budget import Budget
from strategies.core.replacement import previous_record
from strategies.core.view import View
from tests.strategies.driving import condensed, later, texts
from tests.support.transcripts import Body, assistant, call, chat, step, tool, transcript_of, user, view_of, words

ENGLISH_WORDS = ("earlier messages", "What the user said", "Names and numbers", "left out:", "What was done")
WRITES_NOTHING = ("off", "recent", "shorten")
"""Strategies whose views hold no message with words of the proxy's own."""
BUDGET = Budget.of(100_000).with_goal(400)


def chinese(rounds: int = 8) -> list[Body]:
    """A conversation in Chinese: a rule of the user's, then calls of tools with long results and arguments."""
    bodies = [user("请修复解析器。"), assistant("好的。"), user("不要修改 tests/ 目录。")]
    for i in range(rounds):
        asked = call(f"c{i}", "bash", {"command": f"运行 {i} " + "x" * 500})
        bodies += [assistant(None, asked), tool(f"c{i}", f"错误 E{i} 在 src/a.py\n" + words(100))]
    return [*bodies, user("继续")]


def shown(name: str, bodies: list[Body]) -> View:
    return condensed(name, view_of(bodies), BUDGET)


@pytest.mark.parametrize("name", [name for name in TABLE if name not in WRITES_NOTHING])
def test_what_a_strategy_puts_into_a_chinese_conversation_is_chinese(name: str) -> None:
    ours = [item.message.raw for item in shown(name, chinese()).items if not item.intact]
    assert ours, f"add {name} to WRITES_NOTHING if it only drops or cuts messages"
    assert any(word in "".join(ours[:2]) for word in ("条消息", "已省略"))  # the first may be a vendor's own
    assert not any(word in raw for raw in ours for word in ENGLISH_WORDS)


@pytest.mark.parametrize("name", [name for name in TABLE if name not in WRITES_NOTHING])
def test_in_another_language_it_is_english(name: str) -> None:
    bodies = [*chat(2), *(body for i in range(8) for body in step(i, 200)), user("and?")]
    ours = [item.message.raw for item in shown(name, bodies).items if not item.intact]
    assert ours, f"add {name} to WRITES_NOTHING if it only drops or cuts messages"
    assert not any("条消息" in raw or "已省略" in raw for raw in ours)


def test_a_record_that_stands_keeps_its_language_when_the_conversation_changes_it() -> None:
    view = shown("half-window", chinese())
    bodies = [*chinese(), *(body for i in range(20) for body in (assistant("ok"), user(f"Do step {i} in English.")))]
    grown = later(view, transcript_of(bodies))
    assert [item.message.raw for item in grown.items[: view.head_size]] == [
        item.message.raw for item in view.items[: view.head_size]
    ]
    again = condensed("half-window", grown, BUDGET)
    assert "earlier messages" in texts(again)[1]
    assert previous_record(view)[1].said == ("- 不要修改 tests/ 目录。",)
    assert "- 不要修改 tests/ 目录。" in previous_record(again)[1].said
