"""By what a session knows that a list begins with the answer to its client's own compaction."""

import pytest

from proxy.conversations.session import MAX_COMPACTIONS, Session
from strategies.core.client_compaction import candidates, carries, marks_of
from strategies.core.messages import Reader
from strategies.core.transcript import Transcript
from strategies.dialects.chat import CHAT

LINES = [f"{number}. Of the parser, part {number} was read and mended." for number in range(12)]
SUMMARY = "\n".join(LINES)
LATER = "\n".join(
    [*LINES[:8], *(f"{number}. This is new in the later summary, line {number}." for number in range(9, 12))]
)


def transcript(*texts: str) -> Transcript:
    """Messages that take turns, the user's first."""
    roles = ("user", "assistant")
    values = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return Transcript.of(Reader().read(str(value), value, 0, CHAT) for value in values)


def marks(text: str) -> tuple[str, ...]:
    return marks_of([{"role": "assistant", "content": text}], CHAT)


@pytest.mark.parametrize(
    ("sent", "is_known"),
    [
        (SUMMARY, True),
        (f"Another model began this.\n{SUMMARY}\nRead the transcript for more.", True),
        ("\n".join(f"   {line}  " for line in LINES), True),
        ("\n".join(LINES[:3]), False),
        ("What of the parser?", False),
    ],
)
def test_an_answer_is_known_by_half_of_its_longest_lines(sent: str, is_known: bool) -> None:
    assert (
        carries(transcript(sent), marks(f"<analysis>\n{'x' * 200}\n</analysis>\n<summary>\n{SUMMARY}\n</summary>"))
        is is_known
    )
    assert not carries(transcript("Begin.", "Done.", sent), marks(SUMMARY))


def test_an_answer_that_says_little_has_no_marks_and_many_lines_cost_little() -> None:
    assert marks("Done.\nAll is well.") == ()
    assert not carries(transcript("Done."), ())
    many = "\n".join(f"A line of the user's, number {number}." for number in range(10_000))
    assert len(candidates(transcript(many))) == 12
    assert candidates(transcript(many * 2)) == []  # too long to be parsed for this


def test_a_branch_restarts_once_and_remembers_where_it_ended() -> None:
    before = transcript("Begin.", "Done.", "And then?")
    session = Session("s", "header", 0.0)
    session = session.with_branch(None, session.branch_after(None, before, 1.0, has_tools=True))
    session = session.with_compaction("main", marks(SUMMARY))
    assert session.find_branch(before) is session.branches[0]
    after = transcript(SUMMARY, "I go on.", "Well?")
    restarted = session.find_branch(after)
    assert restarted is not None
    assert (restarted.name, restarted.is_restarted) == ("main", True)
    session = session.with_branch(restarted, session.branch_after(restarted, after, 2.0, has_tools=True))
    (branch,) = session.branches
    assert session.heads_of(branch) == [before.digests[-1], after.digests[-1]]
    assert session.find_branch(after) is branch
    # A later summary repeats lines, and its client goes on with the list that it was to replace.
    session = session.with_compaction("main", marks(LATER))
    assert session.find_branch(transcript(SUMMARY, "I go on.", "Well?", "So.", "More?")) is branch
    assert session.find_branch(transcript("Another question of somebody else's.")) is None


def test_a_session_keeps_the_newest_compactions() -> None:
    session = Session("s", "header", 0.0)
    for number in range(2 * MAX_COMPACTIONS):
        session = session.with_compaction(f"b{number}", marks(f"The summary of branch number {number}, at length."))
    assert [known.branch for known in session.compactions] == [
        f"b{n}" for n in range(MAX_COMPACTIONS, 2 * MAX_COMPACTIONS)
    ]
