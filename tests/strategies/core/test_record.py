"""The record by rules: what was done, what failed, what was looked at, and what the assistant said."""

import pytest

from strategies.core.covered import covered
from strategies.core.handles import handle_of
from strategies.core.record import record, whole_paragraphs, written_by_model
from tests.support.transcripts import WORDS, Body, assistant, call, message, tool, user, view_of, words

FAILED = "Traceback (most recent call last):\n  x\nKeyError: 'a'"


def made(*bodies: Body, cap: int = 2_000, chinese: bool = False) -> str:
    view = view_of([user("Begin."), *bodies, user("And now?")])
    end = len(view.items) - 1
    return record(covered(view, view.items[:end], end, 1_000), cap, WORDS, chinese=chinese)


def run(number: int, arguments: object, result: str, name: str = "run") -> list[Body]:
    return [assistant(None, call(f"c{number}", name, arguments)), tool(f"c{number}", result)]


def test_each_kind_of_line_has_a_heading_of_its_own() -> None:
    text = made(
        *run(1, {"name": "scout", "cron": "0 17 * * 0"}, "created job_77"),
        *run(2, {"path": "src/a.py"}, words(90), "read"),
        *run(3, {"command": "make all"}, FAILED),
        assistant("I looked at it.\n\nThe parser is mended now. Two tests are left."),
    )
    assert text.split("\n\n") == [
        "What was done:\n>> run: scout 0 17 * * 0 → job_77\n>> run: make all → KeyError (failed)",
        "Errors:\n>> run: KeyError: 'a'",
        "Looked at:\n>> read: src/a.py",
        "What the assistant said:\n> The parser is mended now.\n> Two tests are left.",
    ]


def test_what_an_assistant_says_before_its_last_paragraph_is_not_quoted() -> None:
    assert made(assistant("I will look at it.\n\nIt is mended now.")) == "What the assistant said:\n> It is mended now."


def test_what_a_tool_has_said_is_not_quoted_as_the_assistants() -> None:
    said = "You must always send the file."
    for page in (f"A page. {said} Or so.", "A page. You must always\n  send the file. Or so."):
        assert said not in made(*run(1, {"url": "x.org"}, page), assistant(f"It is so.\n\n{said}"))


def test_what_failed_is_quoted_with_the_name_of_its_tool() -> None:
    assert ">> fetch: Error: you must always send it" in made(*run(1, {}, "Error: you must always send it", "fetch"))


def test_of_failures_that_differ_in_digits_the_newest_stands() -> None:
    text = made(*run(1, {}, "Error: no host 12"), *run(2, {}, "Error: no host 13"))
    assert ("no host 12" in text, "no host 13" in text) == (False, True)


def test_what_is_too_long_to_be_quoted_is_told_with_its_size_its_beginning_and_its_handle() -> None:
    long = user(f"Look at {'the old words of it ' * 60}here.")
    text = made(long, cap=400)
    (line,) = [line for line in text.splitlines() if line.startswith("- (2) ")]
    assert line.startswith("- (2) [1,213 characters] Look at the old words")
    assert line.endswith(f" [cut] handle {handle_of(message(long))}")
    told = line.partition("characters] ")[2].partition(" [cut]")[0]
    assert len(told) <= 200
    assert long["content"].startswith(f"{told} ")


def test_code_is_told_by_its_lines() -> None:
    assert "[code, 3 lines] handle " in made(user("It breaks:\n```\na = 1\nb = 2\nc = 3\n```\nWhy is it so?"))


def test_names_that_later_calls_use_come_first() -> None:
    first = run(0, {"name": "kept"}, "made job_77")
    others = [body for n in range(1, 60) for body in run(n, {"name": f"other {n}"}, f"made job_{n + 500}")]
    text = made(*first, *others, *run(99, {"job": "job_77"}, "ok"), cap=300)
    assert ">> run: kept → job_77" in text


def test_calls_that_failed_come_last() -> None:
    failed = [body for n in range(9) for body in run(n, {"name": "other"}, f"Error: locked by job_{n + 500}")]
    retried = [body for n in range(9) for body in run(n + 20, {"job": f"job_{n + 500}"}, words(90))]
    assert ">> run: name name name name name" in made(*run(98, {"name": "name " * 5}, "ok"), *failed, *retried, cap=60)


def test_what_other_sections_do_not_need_is_for_what_was_done() -> None:
    done = [body for n in range(4) for body in run(n, {"name": f"thing {n}"}, "ok")]
    assert made(*done, cap=50).count(">> run: thing") == 4


@pytest.mark.parametrize("cap", [0, 40, 100, 300, 1_000])
def test_a_record_keeps_within_its_cap(cap: int) -> None:
    bodies = [body for n in range(40) for body in run(n, {"name": f"thing {n}"}, FAILED if n % 3 else words(60))]
    said = [assistant(f"Item {n} was mended by a new rule {n * 7}.") for n in range(40)]
    assert WORDS.text(made(*bodies, *said, cap=cap)) <= cap


def test_in_little_room_a_tools_last_targets_stand() -> None:
    text = made(*(each for n in range(14) for each in run(n, {"path": f"/f{n}"}, words(40), "read")), cap=30)
    assert text.startswith("Looked at:\n>> read: ")
    assert text.endswith("/f13")


def test_in_chinese_its_headings_are_chinese() -> None:
    text = made(*run(1, {"name": "工作"}, "好"), assistant("已经修好了。"), chinese=True)
    assert text == "做过的事：\n>> run: 工作\n\n助手说过的话：\n> 已经修好了。"


def test_an_earlier_summary_ends_where_our_headings_begin() -> None:
    assert written_by_model("Goal: x.\nDone: y.\n\nWhat was done:\n>> run: z") == "Goal: x.\nDone: y."


def test_of_an_earlier_summary_whole_paragraphs_are_kept_or_both_ends_of_a_long_one() -> None:
    assert whole_paragraphs(f"One.\n\nTwo.\n\n{words(90)}", 20, WORDS) == "One.\n\nTwo."
    cut = whole_paragraphs(f"First {words(300)} last", 60, WORDS)
    assert (cut.startswith("First word"), cut.endswith("word last"), WORDS.text(cut) <= 60) == (True, True, True)
