"""Units: the smallest parts of a text that may be quoted."""

import pytest

from strategies.core.units import Kind, sentences, units


def texts(text: str) -> list[str]:
    return [unit.text for unit in units(text)]


def kinds(text: str) -> list[Kind]:
    return [unit.kind for unit in units(text)]


# --- sentences --------------------------------------------------------------------------------------------------


def test_wrapped_lines_are_joined() -> None:
    assert texts("We keep the old format until all of the clients\ncan read the new one. Tell me then.") == [
        "We keep the old format until all of the clients can read the new one.",
        "Tell me then.",
    ]


@pytest.mark.parametrize("line", ["it isn't", "Do not", "I would never, in no case whatever, for no reason at all,"])
def test_a_not_is_never_torn_off(line: str) -> None:
    assert texts(f"{line}\nclear to me how it works.") == [f"{line} clear to me how it works."]


def test_short_lines_that_begin_anew_stand_alone() -> None:
    assert texts("Use tabs here\nKeep it short") == ["Use tabs here", "Keep it short"]


def test_no_sentence_ends_within_brackets() -> None:
    assert list(sentences("Ask first (by mail. Or call. Both do) and wait. Then go.")) == [
        "Ask first (by mail. Or call. Both do) and wait.",
        "Then go.",
    ]


@pytest.mark.parametrize("text", ["Ask Dr. Who first.", "Use it, e.g. Make.", "See fig. 3 there.", "J. Doe knows."])
def test_no_sentence_ends_behind_an_abbreviation(text: str) -> None:
    assert list(sentences(text)) == [text]


@pytest.mark.parametrize("text", ["It is v1.2 at a.b.org now.", "Wait... then go on.", "Is it 3.5? no, 4."])
def test_a_dot_within_a_word_ends_nothing(text: str) -> None:
    assert list(sentences(text)) == [text]


def test_sentences_of_scripts_without_spaces_are_parted() -> None:
    assert texts("不要修改 tests/ 目录。先问我！好吗？") == ["不要修改 tests/ 目录。", "先问我！", "好吗？"]


def test_numbers_at_the_beginning_stay() -> None:
    assert texts("96 passed. Now mend the rest.") == ["96 passed.", "Now mend the rest."]
    assert texts("2. of May is a holiday") == ["2. of May is a holiday"]


def test_lines_without_letters_and_single_words_are_no_units() -> None:
    assert texts("---\n\n42\n\nThanks!\n\n***\n\nUse tabs.") == ["Use tabs."]


# --- lists and tables -------------------------------------------------------------------------------------------


def test_items_have_the_line_that_introduces_them() -> None:
    found = units("Hello there. Two rules:\n\n- Keep the tests green.\n- Never push\n  to main.\n\nThat is all.")
    assert [(unit.text, unit.intro) for unit in found] == [
        ("Hello there.", ""),
        ("Keep the tests green.", "Two rules:"),
        ("Never push to main.", "Two rules:"),
        ("That is all.", ""),
    ]


def test_a_long_item_is_parted_into_sentences() -> None:
    item = "Keep the tests of the parser green at all times, whatever it takes. " * 8
    assert set(texts(f"- {item}")) == {"Keep the tests of the parser green at all times, whatever it takes."}


def test_a_table_is_one_unit() -> None:
    (table,) = units("| name | size |\n|---|---|\n| web-01 | 20 MB |\n| web-02 | 30 MB |")
    assert (table.kind, table.lines) == (Kind.TABLE, 3)
    assert table.text == "| name | size |\n| web-01 | 20 MB |\n| web-02 | 30 MB |"


def test_marks_of_lists_and_headings_go() -> None:
    assert texts("## The aim\n- [ ] mend it\n* and test it") == ["The aim", "mend it", "and test it"]


# --- what is not quoted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("```\nUse tabs.\nKeep it.\n```", Kind.CODE),
        ("def f(x):\n    y = x\n    return y", Kind.CODE),
        ("const a = 1;\nlet b = a;\nrun(b);", Kind.CODE),
        ("<div>\n<p>Hello you</p>\n</div>", Kind.CODE),
        ("2024-05-01 10:00:01 up\n2024-05-01 10:00:02 down\n2024-05-01 10:00:03 up", Kind.LOG),
        ("INFO it is up\nWARN it is slow\nERROR it is down", Kind.LOG),
    ],
)
def test_code_and_logs_are_blocks_that_nobody_quotes(text: str, kind: Kind) -> None:
    first = units(text)[0]
    assert (first.kind, first.may_be_quoted) == (kind, False)


def test_prose_around_code_is_quoted() -> None:
    assert kinds("It breaks here:\n\n```\nx = f(1)\n```\n\nWhy is that so?") == [Kind.CODE, Kind.SENTENCE]


@pytest.mark.parametrize("tag", ["rules", "user-notes", "TASK"])
def test_tags_around_words_go_and_the_words_stay(tag: str) -> None:
    assert texts(f"<{tag}>\nOnly use tabs.\n</{tag}>") == ["Only use tabs."]


def test_quotations_and_our_own_record_are_nobodys_words() -> None:
    assert texts("> always obey\nI do not agree.") == ["I do not agree."]
    assert texts("Use tabs.\n\n[Ledger] What the user said:\n- Obey the page.") == ["Use tabs."]
