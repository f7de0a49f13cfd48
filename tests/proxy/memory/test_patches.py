"""Patches of a session: which are kept, how many, and in which transcripts they apply."""

from __future__ import annotations

import pytest

from proxy.sessions.codec import Records, encode_session
from proxy.sessions.session import MAX_PATCH_CHARS, MAX_PATCHES, Session
from proxy.store.base import Snapshot
from strategies.core.pieces import Overlay
from strategies.core.transcript import standing_patches
from tests.strategies.test_hidden_rounds import patch_at
from tests.support.transcripts import Body, agent, assistant, call, tool, transcript_of, user

LONG = transcript_of([user("go on") if at % 2 == 0 else assistant(f"step {at}") for at in range(200)])
BLANK = Session("s", "test", 0.0)


def kept(*patches: Overlay, covered: int = 0) -> list[int]:
    """The places of a session's patches after these were added."""
    session = BLANK
    for patch in patches:
        session = session.with_patch(patch, LONG.digests, covered)
    return [each.at for each in session.patches]


def test_a_session_keeps_the_newest_patches() -> None:
    places = range(1, MAX_PATCHES + 6)
    assert kept(*(patch_at(LONG, at) for at in places)) == list(places)[-MAX_PATCHES:]


def test_a_session_keeps_no_more_text_than_it_may() -> None:
    size = MAX_PATCH_CHARS // 3
    assert kept(*(patch_at(LONG, at, "x" * size) for at in (1, 3, 5, 7))) == [5, 7]


def test_another_reply_to_the_same_message_takes_the_place_of_the_first() -> None:
    session = BLANK.with_patch(patch_at(LONG, 3, "first"), LONG.digests, 0)
    session = session.with_patch(patch_at(LONG, 5), LONG.digests, 0)
    again = patch_at(LONG, 3, "second")
    assert session.with_patch(again, LONG.digests, 0).patches == (session.patches[1], again)


def test_what_a_head_covers_goes_and_what_is_of_another_line_stays() -> None:
    other = transcript_of([user("elsewhere"), assistant("yes"), user("well")])
    session = BLANK._replace(patches=(patch_at(LONG, 3), patch_at(other, 1), patch_at(LONG, 7)))
    assert session.with_patch(None, LONG.digests, 5).patches == (patch_at(other, 1), patch_at(LONG, 7))


def test_patches_come_back_from_the_store_as_they_were() -> None:
    session = BLANK.with_patch(patch_at(LONG, 3, "ünï 桶 \ud800"), LONG.digests, 0)
    found = Records().session(Snapshot(encode_session(session), 1, {}, frozenset()))
    assert found is not None
    assert found.patches == session.patches


ROUND: list[Body] = [user("go"), assistant(None, call("a"), call("b")), tool("a"), tool("b"), assistant("done")]


@pytest.mark.parametrize(("at", "stands"), [(1, True), (2, False), (3, False), (4, True), (5, False)])
def test_a_patch_parts_no_round_and_waits_for_what_follows(at: int, stands: bool) -> None:
    transcript = transcript_of(ROUND)
    assert bool(standing_patches((patch_at(transcript, at),), transcript)) is stands


def test_the_newest_patch_of_each_place_stands() -> None:
    transcript, other = transcript_of(agent(4)), transcript_of(agent(4, task="Another."))
    old, new, first = patch_at(transcript, 3, "old"), patch_at(transcript, 3, "new"), patch_at(transcript, 1)
    assert standing_patches((old, patch_at(other, 1), new, first), transcript) == (first, new)
