import pytest

from strategies.core.outcomes import LONGEST, Outcome, outcomes
from tests.support.transcripts import Body, assistant, step, tool, transcript_of, user


def told(*bodies: Body) -> dict[Outcome, list[str]]:
    return outcomes(transcript_of([user("Mend the parser."), *bodies]).chain)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("We switched to the second lexer because the first one drops tabs.", Outcome.DECIDED),
        ("The reader must never see a half-written file.", Outcome.DECIDED),
        ("I renamed the helper in all four modules.", Outcome.DECIDED),
        ("Two of the tests are still failing on the slow machine.", Outcome.OPEN),
        ("我们决定改用第二个解析器，因为第一个会丢失制表符。", Outcome.DECIDED),
        ("下一步是把剩余的三个测试修好再提交。", Outcome.OPEN),
    ],
)
def test_what_the_assistant_says_is_told_by_kind(line: str, kind: Outcome) -> None:
    assert told(assistant(f"Well.\n{line}\nLet me look at it once more."))[kind] == [line]


def test_of_what_tools_print_only_telling_lines_count() -> None:
    printed = (
        "def only(value): return value\n  12:  if required: raise\nTypeError: no parser\nWrote 12 lines to src/a.py\n"
    )
    found = told(*step(0, 0), assistant("ok"), *[tool("x", printed)])

    assert found[Outcome.FAILED] == ["TypeError: no parser"]
    assert found[Outcome.PRINTED] == ["Wrote 12 lines to src/a.py"]
    assert found[Outcome.DECIDED] == []


def test_what_is_told_again_counts_once_with_its_newest_figures() -> None:
    found = told(assistant("The run passed with 12 tests."), user("Again."), assistant("The run passed with 14 tests."))

    assert found[Outcome.DECIDED] == ["The run passed with 14 tests."]


def test_of_a_long_line_the_telling_sentence_is_kept() -> None:
    long = "It is a fine day. " * 40 + "We agreed to ship on Friday. " + "It is a fine day. " * 40

    assert told(assistant(long))[Outcome.DECIDED] == ["We agreed to ship on Friday."]


def test_no_line_is_longer_than_the_bound() -> None:
    (line,) = told(assistant("we decided " + "x" * 5_000 + " and so on"))[Outcome.DECIDED]

    assert len(line) == LONGEST
