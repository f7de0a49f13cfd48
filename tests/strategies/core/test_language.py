"""The language of a conversation."""

import pytest

from strategies.core.transcript import is_chinese
from tests.support.transcripts import Body, assistant, largest_of_each_kind, tool, transcript_of, user


@pytest.mark.parametrize(
    "bodies",
    [
        [user("请帮我修复这个 TypeError: 'NoneType' object is not subscriptable 错误")],
        [
            user("修复解析器"),
            assistant("I look at the parser."),
            tool("c", "a long English output " * 50),
            user("继续"),
        ],
        [user("看看这段代码：\n```python\n" + "print('hello world')\n" * 40 + "```")],
        [assistant("你好，需要什么帮助？")],
        [user("继续吧"), user("ok")],
    ],
)
def test_a_conversation_in_chinese_is_recognised(bodies: list[Body]) -> None:
    assert is_chinese(transcript_of(bodies))


@pytest.mark.parametrize(
    "bodies",
    [
        [],
        [user("")],
        [user("Fix the parser."), assistant("好的，我来看看。"), tool("c", "错误：失败")],
        [user("Rename the folder 数据 to data everywhere in this repository, please, and run all the tests again.")],
        [user("パーサーを修正してください。テストも実行してください。")],
        [user("파서를 고쳐 주세요")],
        [user("one"), user("two"), user("继续吧")],
    ],
)
def test_other_conversations_are_not_chinese(bodies: list[Body]) -> None:
    assert not is_chinese(transcript_of(bodies))


def test_recorded_conversations_are_told_apart() -> None:
    found = [(one.id, is_chinese(transcript_of(one.messages)), one.language) for one in largest_of_each_kind(each=3)]
    assert [each for each in found if each[1] != (each[2] == "zh")] == []
