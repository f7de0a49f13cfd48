"""What a record quotes: its units, and when one of them is torn, said by nobody, or a tool's without its mark."""

import asyncio

from eval import quoted
from eval.quoted import Fault, Said, Unit, faults, is_told, units
from proxy.commands.replaying.recorded import Conversation
from tests.support.transcripts import assistant, user

WRAPPED = "Back to the names, it isn't entirely and in every case\nclear to me how the site was found. Go on."
USER, TOOL = frozenset({"user"}), frozenset({"tool"})
SAID = {
    "user": [Said.of(WRAPPED, "user"), Said.of("Two rules:\n- Keep the tests green.\n- Never push.", "user")],
    "tool": [Said.of("12 passed\nerror: no such host\n", "tool")],
}


def wrong(roles: frozenset[str], *lines: str, marked: bool = False) -> set[Fault]:
    return faults(Unit(roles, lines, marked), SAID)


def test_a_record_has_units_under_the_headings_of_their_speakers() -> None:
    record = (
        "[Condensed history] The 9 earlier messages.\n\nErrors:\n>> run: error: no such host\n\n"
        "Looked at:\n>> run: a.py\n\nWhat the assistant said:\n> It works.\n\n"
        "[Ledger] What the user said, word for word, oldest first:\n- Keep it.\n- Two\n  lines\n- Never push."
    )
    assert list(units(record)) == [
        Unit(TOOL, ("run: error: no such host",), True),
        Unit(quoted.TOLD, ("run: a.py",), True),
        Unit(frozenset({"assistant"}), ("It works.",), True),
        *(Unit(USER, ("Keep it.",), False), Unit(USER, ("Two", "  lines"), False)),
        Unit(USER, ("Never push.",), False),
    ]


def test_sentences_list_items_and_wrapped_paragraphs_are_whole() -> None:
    assert wrong(USER, "Never push.") == set()
    assert wrong(USER, "Two rules:", "- Never push.") == set()
    assert wrong(USER, "[2] Keep the tests green.") == set()
    whole = "Back to the names, it isn't entirely and in every case clear to me how the site was found."
    assert wrong(USER, whole) == set()


def test_a_sentence_without_its_beginning_is_torn() -> None:
    assert wrong(USER, "clear to me how the site was found.") == {Fault.TORN}
    assert wrong(USER, "Keep the tests") == {Fault.TORN}


def test_what_nobody_said_or_another_one_said_is_in_no_message_of_that_role() -> None:
    assert wrong(USER, "Never push (was always).") == {Fault.ABSENT}
    assert wrong(USER, "12 passed") == {Fault.ABSENT, Fault.UNMARKED}


def test_words_of_tools_have_their_mark() -> None:
    assert wrong(TOOL, "12 passed") == {Fault.UNMARKED}
    assert wrong(TOOL, "run: error: no such host", marked=True) == set()


def test_what_is_cut_or_stands_for_something_is_told() -> None:
    assert is_told(Unit(USER, ("[log, 200 lines]",), False))
    assert is_told(Unit(USER, ("4,000 characters: It began [cut] a1b2",), False))
    assert not is_told(Unit(USER, ("Keep it.",), False))


def test_an_audit_reads_the_records_of_a_conversation() -> None:
    messages = [message for i in range(40) for message in (user(f"Point {i} is fine."), assistant("So " * 120))]
    found = asyncio.run(quoted.audit(Conversation("a", messages)))
    assert found["units"] > 0
    assert found["torn"] == found["in no message of that role"] == 0
