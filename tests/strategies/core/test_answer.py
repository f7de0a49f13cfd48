"""Which answers of a summarizer may stand for history, and what is read from them beside the record."""

import pytest

from strategies.core.effects import Answer, Ask, Failure, Result, Votes
from strategies.core.errors import AnswerRefused
from strategies.core.parsing import without_thoughts
from strategies.core.summary import LEAST_TOKENS, AskedRecord, ParsedAnswer, accept, read_json_answer
from strategies.dynacontext import FORMS
from strategies.prompts import prompt
from tests.support.transcripts import WORDS, words

ASKED = Ask("You write the record of a part of a conversation between a user and an assistant.", "…", max_tokens=200)
GOOD = "Goal: mend the parser. Done: read src/a.py."
SPAN = 200
CARD = '{"content": "The parser is in src/a.py.", "type": "fact"}'


def parsed(answer: Answer, span: int = SPAN) -> ParsedAnswer:
    return accept(answer, AskedRecord(ASKED, 100, span, WORDS))


def tagged(text: str) -> str:
    return f"<summary>\n{text}\n</summary>"


def record(text: str, span: int = SPAN) -> str:
    return parsed(Answer(tagged(text)), span).record


def refusal(result: Result, span: int = 1_000) -> str:
    with pytest.raises(AnswerRefused) as error:
        accept(result, AskedRecord(ASKED, 100, span, WORDS))
    return error.value.reason


def test_a_record_is_accepted_without_its_tags() -> None:
    assert record(f" {GOOD}\n") == GOOD


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "Here is the record:\n{}\nI hope that this helps.",
        "I write a draft, <summary>Goal: all</summary>, and then the record.\n{}",
        "The record goes between <summary> and </summary>:\n{}",
        "It begins with <summary>.\n{}",
        "<think>It goes into <summary> tags.</think>{}",
    ],
)
def test_a_record_is_what_stands_in_the_last_pair_of_tags(around: str) -> None:
    assert parsed(Answer(around.format(tagged(GOOD)))).record == GOOD


def test_a_record_may_speak_of_its_tags() -> None:
    text = f"{GOOD} Open: it emits <summary> twice."
    assert record(text) == text


@pytest.mark.parametrize("name", ["summary", "semantic", "semantic-zh"])
def test_a_record_without_tags_is_refused_whatever_it_begins_with(name: str) -> None:
    asked = AskedRecord(Ask(prompt(name), "…", max_tokens=200), 100, SPAN, WORDS)
    for begins in ("Goal: ", "技术状态: ", "The clerk noted all. ", "<summary>\n"):
        with pytest.raises(AnswerRefused, match="summary-untagged"):
            accept(Answer(f"{begins}{words(40)}"), asked)


@pytest.mark.parametrize("name", ["summary", "semantic", "rolling"])
def test_a_record_with_few_of_the_sections_is_accepted(name: str) -> None:
    asked = AskedRecord(Ask(prompt(name), "…", max_tokens=200), 100, SPAN, WORDS)
    for good in (f"Goal: {words(20)}", f"The clerk noted all of it. {words(20)}"):
        assert accept(Answer(tagged(good)), asked).record == good


CODE = '```python\njson.dumps({"summary": "This page will be faster for new users."})\n```'


@pytest.mark.parametrize("name", ["plain", "sections"])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (GOOD, "summary-untagged"),
        (f"Noted. {words(40)}\n\nQuestion 1: Is there a question for it?", "summary-untagged"),
        (CODE, "summary-untagged"),
        (tagged(CODE), "summary-not-prose"),
        (tagged('{"Goal": "mend the parser", "Done": "src/a.py was read"}'), "summary-not-prose"),
        ('{"goal": "mend the parser", "done": "src/a.py was read"}', "summary-untagged"),
    ],
)
def test_an_answer_in_another_form_is_refused_for_every_strategy(name: str, answer: str, reason: str) -> None:
    with pytest.raises(AnswerRefused) as error:
        accept(Answer(answer), AskedRecord(ASKED, 100, SPAN, WORDS, FORMS[name].read))
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (GOOD, ""),
        (f"Noted. {words(40)}", ""),
        ("I'm sorry, but I can't help with that.", "summary-refused"),
        (ASKED.system, "summary-echo"),
        ("So.", "summary-empty"),
        (CODE, "summary-untagged"),
        ("```python\nprint(1)\n```", "summary-not-prose"),
        ('{"summary": "Goal: mend the parser. Done: "read" src/a.py.", "memories": []}', "summary-untagged"),
        ('{"goal": "mend the parser", "done": "src/a.py was read"}', "summary-untagged"),
    ],
)
def test_a_text_in_place_of_json_is_the_record_if_it_is_prose(answer: str, reason: str) -> None:
    question = AskedRecord(ASKED, 100, SPAN, WORDS, read_json_answer)
    if not reason:
        assert accept(Answer(answer), question).record == answer
        return
    with pytest.raises(AnswerRefused, match=reason):
        accept(Answer(answer), question)


@pytest.mark.parametrize(
    "thoughts",
    ["<think>\nBe brief.\n</think>\n\n", "I must\nbe brief.\n</think>", "<Thinking>a</Thinking> <think></think>\n"],
)
def test_a_record_is_accepted_without_the_reasoning_before_it(thoughts: str) -> None:
    assert parsed(Answer(thoughts + tagged(GOOD))).record == GOOD


def test_a_record_may_speak_of_reasoning() -> None:
    text = "Goal: strip `<think>` and `</think>` from answers. Done: the parser finds both."
    assert record(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "抱歉"
        + "，用户多次为之前的误解道歉，随后修复了解析器中的错误并运行了全部测试，一切正常。" * 2
        + "目标：完成修复。",
        "Sorry, " + words(90),
        "The user said: I'm sorry, I cannot open the file.",
        "You write a parser.",
    ],
)
def test_a_record_that_resembles_a_refusal_is_accepted(text: str) -> None:
    assert record(text) == text


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Failure("timeout"), "summary-timeout"),
        (Failure("rate-limited"), "summary-rate-limited"),
        (Votes(()), "summary-unreadable"),
        (Answer(""), "summary-empty"),
        (Answer(" \n "), "summary-empty"),
        (Answer("<think>They want a record, so"), "summary-empty"),
        (Answer("<summary></summary>"), "summary-empty"),
        (Answer(f"<memory>[{CARD}]</memory>"), "summary-empty"),
        (Answer(GOOD, finish_reason="length"), "summary-cut-short"),
        (Answer(GOOD, finish_reason="content_filter"), "summary-not-finished"),
        (Answer(GOOD, finish_reason=""), "summary-not-finished"),
        (Answer(GOOD, called_tools=True), "summary-called-tools"),
        (Answer(words(101)), "summary-too-long"),
        (Answer("I'm sorry, but I can't help with that."), "summary-refused"),
        (Answer("I cannot do this."), "summary-refused"),
        (Answer("As an AI, I have no memory."), "summary-refused"),
        (Answer("抱歉，我无法完成这个请求。"), "summary-refused"),
        (Answer(ASKED.system), "summary-echo"),
        (Answer('<message index="3" role="user"> hello'), "summary-echo"),
        (Answer("Record: <history> hello"), "summary-echo"),
    ],
)
def test_an_answer_unfit_as_a_record_says_its_reason(result: Result, reason: str) -> None:
    assert refusal(result) == reason


NOTHING_SAID = [
    "Summary generation failed.",
    "Summary generation failed: timeout after three attempts.",
    "The summary is not available.",
    "Failed to generate a summary.",
    "No summary could be generated.",
    "摘要生成失败。",
    "生成摘要失败，请稍后再试。",
    "总结失败",
    "N/A",
    "- n/a.",
    "None",
    "无",
    "...",
    "[summary]",
    "<summary here>",
    "【摘要】",
    "{insert the summary of the conversation here}",
    "## Context Summary\nGoal: N/A\nDone: none\n- Open: [open tasks]",
    "**Goal**\nN/A\n**Done**\nN/A",
    "任务上下文: 无\n关键进展: 暂无",
]


@pytest.mark.parametrize("text", NOTHING_SAID)
def test_a_record_that_says_nothing_is_refused_as_empty(text: str) -> None:
    assert refusal(Answer(text), span=SPAN) == "summary-empty"


@pytest.mark.parametrize(
    "text",
    [
        "I was unable to summarize this.",
        "I’m unable to help with that.",
        "I am not able to do this.",
        "Unable to summarize this. Please send the conversation again.",
        "Unable to read the history.",
        "I could not generate a summary.",
        "我无法完成摘要。",
        "无法总结这段对话。",
        "很抱歉，我不能这样做。",
    ],
)
def test_a_record_that_says_it_was_not_possible_is_refused(text: str) -> None:
    assert refusal(Answer(text), span=SPAN) == "summary-refused"


@pytest.mark.parametrize(
    "text",
    [
        "Goal: mend the parser. Open questions: N/A",
        "Goal: mend the parser.\nOpen: none\nRules: N/A",
        "The cell shows N/A where the price is missing.",
        "The tool was unable to open src/a.py; the user wants it created.",
        "Unable to reproduce the crash; next the user wants a run with -X dev.",
        "Summary generation failed in test_digest, and the user wants it mended.",
        "The job logged 'Summary generation failed.' twice; its timeout was raised.",
        "用户报告“摘要生成失败。”，原因是超时，已改为 30 秒。",
        "用户无法登录，原因是令牌过期；已修复。",
        "No summary page exists yet; the user wants one under docs/.",
        "Nothing was changed. The user wants to see a plan first.",
        "[x] parser mended\n[ ] run the tests",
    ],
)
def test_a_short_record_that_only_mentions_a_failure_is_accepted(text: str) -> None:
    assert record(text) == text


@pytest.mark.parametrize(("span", "least"), [(500, 10), (1_300, 26), (2_000, LEAST_TOKENS), (200_000, 40)])
def test_a_crumb_of_a_span_is_refused(span: int, least: int) -> None:
    assert record(words(least), span) == words(least)
    assert refusal(Answer(tagged(words(least - 1))), span) == "summary-empty"


def test_a_record_that_is_not_smaller_than_its_span_is_refused() -> None:
    tokens = WORDS.text(GOOD)
    assert refusal(Answer(tagged(GOOD)), span=tokens) == "summary-not-smaller"
    assert record(GOOD, tokens + 1) == GOOD


# --- cards beside it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [f"<memory>[{CARD}]</memory>", f"\n<memory>\n```json\n[{CARD}]\n```\n</memory>\n"])
def test_cards_stand_beside_the_record_and_count_for_none_of_its_checks(block: str) -> None:
    tokens = WORDS.text(GOOD)
    found = parsed(Answer(f"{tagged(GOOD)}{block}"), tokens + 1)
    assert found.record == GOOD
    assert [card.content for card in found.cards] == ["The parser is in src/a.py."]


@pytest.mark.parametrize(
    "block", ["<memory>[{broken}]</memory>", "<memory>none</memory>", '<memory>[{"content": 3}]</memory>', "<memory>{"]
)
def test_a_record_with_a_broken_block_is_a_good_record_without_cards(block: str) -> None:
    assert parsed(Answer(f"{tagged(GOOD)}\n{block}"))[:2] == (GOOD, ())


def test_an_answer_that_ends_among_its_cards_is_a_good_record() -> None:
    assert parsed(Answer(f'{tagged(GOOD)}\n<memory>\n[{CARD}, {{"cont', finish_reason="length"))[:2] == (GOOD, ())


def test_an_answer_that_was_filtered_is_none_whatever_stands_beside_it() -> None:
    assert refusal(Answer(f"{GOOD}<memory>[{CARD}]", finish_reason="content_filter")) == "summary-not-finished"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("I must list.\n</think>\n\nGoal: a", "Goal: a"),
        ("<think>a</think><think>b</think>c", "c"),
        ("<think>cut", ""),
        ("Strip a stray </think> tag. Never delete tests.", "Strip a stray </think> tag. Never delete tests."),
        ("<summary>It emits </think>\nNext: test.</summary>", "<summary>It emits </think>\nNext: test.</summary>"),
        ("<think>x</think>Handle </think>\nlater", "Handle </think>\nlater"),
    ],
)
def test_a_closing_tag_of_thoughts_in_the_answer_is_no_thought(text: str, left: str) -> None:
    assert without_thoughts(text) == left
