"""Sessions, branches and patches: which branch a transcript continues, and which patches are kept."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.condensing.traits import size_refused
from proxy.condensing.traits.rewriting import RefusedRewriting
from proxy.conversations.codec import Records, encode_session
from proxy.conversations.session import (
    MAX_BRANCHES,
    MAX_PATCH_CHARS,
    MAX_PATCHES,
    Branch,
    Session,
    branch_name,
    unstored_in,
)
from proxy.protocols.replies import ending
from proxy.servers.windows import SizeRefused
from proxy.store.base import Snapshot
from strategies.core.messages import ROOT
from strategies.core.pieces import Literal, Overlay, PieceKind
from strategies.core.protocol import Verdict
from strategies.core.transcript import Transcript, standing_patches
from tests.proxy.remembered import update
from tests.strategies.test_hidden_rounds import patch_at
from tests.support.transcripts import Body, agent, assistant, call, tool, transcript_of, user

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
    session, _ = after(session, session.find_branch(transcript), now)
    return session, session.branches[-1]


def letters_unstored_in(session: Session, history: str) -> str:
    """The letters of a history whose blocks a session does not have."""
    transcript = letters(history)
    runs = unstored_in(session, transcript, session.find_branch(transcript))
    return "".join(history[i] for run in runs for i in run)


def branch(session: Session, history: str) -> str | None:
    found = session.find_branch(letters(history))
    return found.name if found else None


def test_the_first_branch_is_main_and_knows_the_node_before_its_last() -> None:
    assert branch(NEW, "a") is None
    session, opened = moved(NEW, letters("a"), 1.0)
    assert (opened.name, opened.length, opened.before) == ("main", 1, ROOT)
    assert branch(session, "a") == "main"
    _, opened = moved(NEW, letters("ab"), 1.0)
    assert opened.before == nodes("a")[0]


def test_a_history_is_the_branch_unless_it_diverges_before_the_last_message() -> None:
    for history in ("abc", "abcd", "abcdefg", "abX", "abXdef", "ab"):
        assert branch(session_of("abc"), history) == "main"
    for new in (NEW, DERIVED):
        for history in ("aXc", "Xbc", "a", "X", "aXcd"):
            assert branch(session_of("abc", session=new), history) is None


@pytest.mark.parametrize(("history", "name"), [("abXd", "main"), ("abXdef", "main"), ("abX", None), ("ab", None)])
def test_a_rewritten_last_message_counts_once_answered(history: str, name: str | None) -> None:
    assert branch(session_of("abc", session=DERIVED), history) == name


def test_the_branch_that_covers_most_counts_and_what_is_new_is_told() -> None:
    session = session_of("abc", "aXYZ", "abcde")
    assert [each.name for each in session.branches] == ["b2", "main"]
    assert branch(session, "abcdef") == "main"
    assert branch(session, "aXYZ!") == "b2"
    session = session_of("abc")
    assert letters_unstored_in(session, "abcde") == "de"
    assert letters_unstored_in(session, "abXY") == "XY"
    assert letters_unstored_in(session, "other") == "other"


def test_the_branches_used_last_are_kept_and_names_count_on() -> None:
    session = session_of(*(f"{chr(0x4E00 + i)}ab" for i in range(MAX_BRANCHES + 5)))
    assert len(session.branches) == MAX_BRANCHES
    assert session.branches[-1].name == f"b{MAX_BRANCHES + 5}"
    assert "main" not in {each.name for each in session.branches}
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


def test_a_fork_stores_its_parents_messages_once() -> None:
    fork = DERIVED._replace(inherited=3)
    assert letters_unstored_in(fork, "abcXY") == "XY"
    opened = session_of("abcXY", session=fork)
    assert opened.inherited == 3
    assert letters_unstored_in(opened, "abcXYZ") == "abcZ"
    assert session_of("abcXYZ", session=opened).inherited == 0
    opened = session_of("aqbce", session=DERIVED._replace(inherited=4))
    assert letters_unstored_in(opened, "aqer") == "aqer"
    assert letters_unstored_in(opened, "aqerf") == "aqerf"


def test_branches_are_main_then_b2() -> None:
    assert [branch_name(number) for number in (0, 1, 2, 17)] == ["main", "main", "b2", "b17"]


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
        assert size_refused.newest(newer, taught, ends=ends) == then


def test_verdicts_and_branches_come_back_from_the_store() -> None:
    verdict = Verdict(True, b"ab", 3, 900, 1.0, {"judge_votes": []}, (b"cd", b"ef"))
    again = Records().session(Snapshot(encode_session(DERIVED.with_verdict(verdict, {})), 1))
    assert again is not None
    assert again.verdicts == (verdict,)
    session, _ = moved(DERIVED, letters("abc"), 1.0, reply="0123456789abcdef")
    session = session._replace(forgotten_ids=("x",), patches=(patch_at(LONG, 3, "ünï 桶 \ud800"),))
    assert Records().session(Snapshot(encode_session(session), 1)) == session._replace(revision=1)


LONG = transcript_of([user("go on") if at % 2 == 0 else assistant(f"step {at}") for at in range(200)])
BLANK = Session("s", "test", 0.0)


def kept(*patches: Overlay, covered: int = 0) -> list[int]:
    """The places of a session's patches after these were added."""
    session = BLANK
    for patch in patches:
        session = session.with_patch(patch, LONG.digests, covered)
    return [each.at for each in session.patches]


def test_a_session_keeps_the_newest_patches_and_bounded_text() -> None:
    places = range(1, MAX_PATCHES + 6)
    assert kept(*(patch_at(LONG, at) for at in places)) == list(places)[-MAX_PATCHES:]
    size = MAX_PATCH_CHARS // 3
    assert kept(*(patch_at(LONG, at, "x" * size) for at in (1, 3, 5, 7))) == [5, 7]


def test_patches_of_other_chains_leave_first() -> None:
    other = transcript_of([user("elsewhere"), assistant("yes"), user("well")])
    session = BLANK.with_patch(patch_at(LONG, 1), LONG.digests, 0).with_patch(patch_at(other, 1), other.digests, 0)
    for at in range(2, MAX_PATCHES + 1):
        session = session.with_patch(patch_at(LONG, at), LONG.digests, 0)
    assert session.patches == tuple(patch_at(LONG, at) for at in range(1, MAX_PATCHES + 1))


@pytest.mark.parametrize(
    ("at", "under", "covered", "stands"),
    [(5, 3, 3, True), (5, 3, 4, True), (5, 3, 5, False), (5, 5, 5, True), (5, 3, 2, False), (5, 0, 0, True)],
)
def test_a_block_stands_until_another_head_takes_it_in(at: int, under: int, covered: int, stands: bool) -> None:
    assert replace(patch_at(LONG, at), under=under).stands_behind(covered) is stands


def test_another_reply_to_the_same_message_takes_the_place_of_the_first() -> None:
    session = BLANK.with_patch(patch_at(LONG, 3, "first"), LONG.digests, 0)
    session = session.with_patch(patch_at(LONG, 5), LONG.digests, 0)
    again = patch_at(LONG, 3, "second")
    assert session.with_patch(again, LONG.digests, 0).patches == (session.patches[1], again)


def test_a_hidden_round_and_what_is_carried_share_a_place_and_each_replaces_its_own_kind() -> None:
    rounds, again = patch_at(LONG, 5), patch_at(LONG, 5, "again")
    carried, other = (Overlay(rounds.anchor, 5, 0, (Literal(f'"{each}"', PieceKind.CARRIED),)) for each in "ab")
    session = BLANK
    for patch in (carried, rounds, other, again):
        session = session.with_patch(patch, LONG.digests, 0)
    assert session.patches == (other, again)
    assert standing_patches(session.patches, LONG) == (again, other)


def test_the_newest_patch_of_each_place_stands_unless_covered() -> None:
    other = transcript_of([user("elsewhere"), assistant("yes"), user("well")])
    session = BLANK._replace(patches=(patch_at(LONG, 3), patch_at(other, 1), patch_at(LONG, 7)))
    assert session.with_patch(None, LONG.digests, 5).patches == (patch_at(other, 1), patch_at(LONG, 7))
    transcript, other = transcript_of(agent(4)), transcript_of(agent(4, task="Another."))
    old, new, first = patch_at(transcript, 3, "old"), patch_at(transcript, 3, "new"), patch_at(transcript, 1)
    assert standing_patches((old, patch_at(other, 1), new, first), transcript) == (first, new)


ROUND: list[Body] = [user("go"), assistant(None, call("a"), call("b")), tool("a"), tool("b"), assistant("done")]


@pytest.mark.parametrize(("at", "stands"), [(1, True), (2, False), (3, False), (4, True), (5, False)])
def test_a_patch_parts_no_round_and_waits_for_what_follows(at: int, stands: bool) -> None:
    transcript = transcript_of(ROUND)
    assert bool(standing_patches((patch_at(transcript, at),), transcript)) is stands


def test_what_one_upstream_accepted_only_unchanged_spares_nothing_at_another() -> None:
    twice = RefusedRewriting().after_one_more("a", 0.0).after_one_more("a", 1.0)
    assert (twice.spares("a", 2.0), twice.spares("b", 2.0), twice.after_one_more("b", 2.0).proofs) == (True, False, 1)
