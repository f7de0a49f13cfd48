"""Sessions and branches: which branch a transcript continues."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints.replies import ending
from proxy.knowledge.learned_windows import SizeRefused
from proxy.sessions.codec import Records, encode_session
from proxy.sessions.session import (
    MAX_BRANCHES,
    Branch,
    Session,
    branch_name,
    size_after,
    unstored_in,
    with_depth,
)
from proxy.store.base import Snapshot
from strategies.core.messages import ROOT
from strategies.core.protocol import Verdict
from strategies.core.transcript import Transcript
from tests.proxy.remembered import update
from tests.support.transcripts import assistant, tool, transcript_of, user

NEW = Session("s", "X-Condenser-Session", 0.0)
DERIVED = Session("s", "derived", 0.0)


def letters(text: str) -> Transcript:
    """A history with one message for each letter: an assistant's for a small one from `p` on, else a user's."""
    return transcript_of([assistant(letter) if "p" <= letter <= "z" else user(letter) for letter in text])


def nodes(text: str) -> list[bytes]:
    """Chain digests of a history with one message for each letter."""
    return letters(text).digests


def session_of(*histories: str, session: Session = NEW) -> Session:
    for now, history in enumerate(histories):
        session, _ = moved(session, letters(history), float(now))
    return session


def moved(
    session: Session, transcript: Transcript, now: float, applied: str = "", reply: str = ""
) -> tuple[Session, Branch]:
    """The session after a turn, and the branch of that turn."""
    after = update(transcript, applied=applied, reply=reply).after
    session = after(session, session.find_branch(transcript), now)
    return session, session.branches[-1]


def letters_unstored_in(session: Session, history: str) -> str:
    """The letters of a history whose blocks a session does not have."""
    transcript = letters(history)
    runs = unstored_in(session, transcript, session.find_branch(transcript))
    return "".join(history[i] for run in runs for i in run)


def branch(session: Session, history: str) -> str | None:
    found = session.find_branch(letters(history))
    return found.name if found else None


def test_a_new_session_has_no_branch_and_its_first_is_main() -> None:
    assert branch(NEW, "a") is None
    session, opened = moved(NEW, letters("a"), 1.0)
    assert (opened.name, opened.length, opened.before) == ("main", 1, ROOT)
    assert branch(session, "a") == "main"


@pytest.mark.parametrize("history", ["abc", "abcd", "abcdefg"])
def test_a_history_that_goes_on_from_the_head_is_the_branch(history: str) -> None:
    assert branch(session_of("abc"), history) == "main"


@pytest.mark.parametrize("history", ["abX", "abXdef", "ab"])
def test_a_rewritten_last_message_is_still_the_branch(history: str) -> None:
    assert branch(session_of("abc"), history) == "main"


@pytest.mark.parametrize("session", [NEW, DERIVED], ids=["named", "derived"])
@pytest.mark.parametrize("history", ["aXc", "Xbc", "a", "X", "aXcd"])
def test_what_diverges_earlier_is_a_fork(history: str, session: Session) -> None:
    assert branch(session_of("abc", session=session), history) is None


@pytest.mark.parametrize(("history", "name"), [("abXd", "main"), ("abXdef", "main"), ("abX", None), ("ab", None)])
def test_a_rewritten_last_message_counts_once_answered(history: str, name: str | None) -> None:
    assert branch(session_of("abc", session=DERIVED), history) == name


def test_the_branch_that_covers_most_counts() -> None:
    session = session_of("abc", "aXYZ", "abcde")
    assert [each.name for each in session.branches] == ["b2", "main"]
    assert branch(session, "abcdef") == "main"
    assert branch(session, "aXYZ!") == "b2"


def test_names_count_on_when_branches_have_been_forgotten() -> None:
    session = session_of(*(f"{chr(0x4E00 + i)}ab" for i in range(MAX_BRANCHES + 5)))
    assert len(session.branches) == MAX_BRANCHES
    assert session.branches[-1].name == f"b{MAX_BRANCHES + 5}"
    assert "main" not in {each.name for each in session.branches}


def test_the_branches_used_last_are_kept() -> None:
    histories = [f"{chr(0x4E00 + i)}ab" for i in range(MAX_BRANCHES)]
    session = session_of(*histories)
    session, _ = moved(session, letters(histories[0] + "c"), 1_000.0)
    session, _ = moved(session, letters("new"), 1_001.0)
    assert branch(session, histories[0] + "cd") == "main"
    assert branch(session, histories[1] + "c") is None


def test_an_advanced_branch_remembers_what_its_view_applied() -> None:
    session, _ = moved(NEW, letters("ab"), 0.0, "c1")
    found = session.find_branch(letters("abc"))
    assert found is not None
    assert found.applied == "c1"
    assert moved(session, letters("abc"), 1.0)[1].applied == ""


def test_totals_add_up() -> None:
    session = NEW.with_totals(requests=1, client_tokens=10).with_totals(requests=1, own_tokens=5)
    assert session.totals == {"requests": 2, "client_tokens": 10, "own_tokens": 5}


def test_what_is_new_is_what_its_branch_has_not() -> None:
    session = session_of("abc")
    assert letters_unstored_in(session, "abcde") == "de"
    assert letters_unstored_in(session, "abXY") == "XY"
    assert letters_unstored_in(session, "other") == "other"


def test_a_fork_has_its_parents_messages_for_itself_once_it_goes_on() -> None:
    fork = DERIVED._replace(inherited=3)
    assert letters_unstored_in(fork, "abcXY") == "XY"
    opened = session_of("abcXY", session=fork)
    assert opened.inherited == 3
    assert letters_unstored_in(opened, "abcXYZ") == "abcZ"
    assert session_of("abcXYZ", session=opened).inherited == 0


def test_a_fork_stores_no_message_twice() -> None:
    opened = session_of("aqbce", session=DERIVED._replace(inherited=4))
    assert letters_unstored_in(opened, "aqer") == "aqer"
    assert letters_unstored_in(opened, "aqerf") == "aqerf"


def test_a_branch_knows_the_node_before_its_last_message() -> None:
    _, opened = moved(NEW, letters("ab"), 1.0)
    assert opened.before == nodes("a")[0]


@pytest.mark.parametrize(("number", "name"), [(0, "main"), (1, "main"), (2, "b2"), (17, "b17")])
def test_branches_are_main_then_b2_and_so_on(number: int, name: str) -> None:
    assert branch_name(number) == name


@pytest.mark.parametrize(("depth", "name"), [(0, "b2"), (1, "b2+"), (3, "b2+++"), (4, "b2+4"), (12, "b2+12")])
def test_the_depth_is_a_suffix(depth: int, name: str) -> None:
    assert with_depth("b2", depth) == name


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=12), st.sampled_from([NEW, DERIVED]))
def test_whatever_came_a_session_goes_on_with_the_history_it_saw_last(histories: list[str], new: Session) -> None:
    session = session_of(*histories, session=new)
    assert branch(session, histories[-1] + "z") == session.branches[-1].name
    assert len({each.name for each in session.branches}) == len(session.branches)
    assert session.branches_opened >= len(session.branches)


@pytest.mark.parametrize(
    ("rewritten", "reply", "alike"),
    [
        (user("What now, with context?"), "Dig.", True),
        (user("What now, with context?"), "", True),  # not known: the reply was too long, or had no text
        (user("What now, with context?"), "Plant.", False),
        (assistant("I say: Dig."), "Dig.", True),  # the client began it, and the reply has completed it
        (tool("call-1", "cut"), "Dig.", False),
    ],
)
def test_a_rewritten_last_message_is_a_users(rewritten: dict[str, Any], reply: str, alike: bool) -> None:
    """The transcript is that of a client which has rewritten the head of the branch, and got `Dig.` for it."""
    opening = [user("Plan my garden."), assistant("")]
    before = transcript_of([*opening, user("What now?")])
    session, branch = moved(DERIVED, before, 0.0, reply=ending(reply))
    assert branch.is_answered_alike(before)
    later = transcript_of([*opening, rewritten, assistant("Dig."), user("And then?")])
    assert session.find_branch(later) == branch
    assert branch.is_answered_alike(later) == alike


def test_a_request_ends_only_the_size_refused_that_it_knew() -> None:
    known, newer = SizeRefused("m", 900, 10.0), SizeRefused("m", 600, 20.0)
    for taught, ends, then in ((known, False, newer), (known, True, newer), (newer, True, None), (None, False, newer)):
        assert size_after(newer, taught, ends=ends) == then


def test_a_verdict_comes_back_from_the_store() -> None:
    verdict = Verdict(True, b"ab", 3, 900, 1.0, {"judge_votes": []}, (b"cd", b"ef"))
    again = Records().session(Snapshot(encode_session(DERIVED.with_verdict(verdict, {})), 1))
    assert again is not None
    assert again.verdicts == (verdict,)


def test_a_branch_comes_back_from_the_store() -> None:
    session, _ = moved(DERIVED, letters("abc"), 1.0, reply="0123456789abcdef")
    assert Records().session(Snapshot(encode_session(session), 1)) == session._replace(revision=1)
