"""A branch knows when it first applied its condensation, where reasoning is bound to what stands before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.sessions.codec import decode_document, encode_session
from proxy.sessions.session import Session
from proxy.sessions.turn import SessionUpdate, session_after
from strategies.core.messages import Dialect
from strategies.core.transcript import Transcript
from strategies.dialects.chat import CHAT
from strategies.dialects.messages import MESSAGES
from tests.support.transcripts import READER

NEW = Session("s", "X-Condenser-Session", 0.0)


def talk(length: int, dialect: Dialect = MESSAGES, last: str = "") -> Transcript:
    """A history of so many messages."""
    bodies: list[Any] = [{"role": ("user", "assistant")[i % 2], "content": f"no {i}"} for i in range(length)]
    bodies[-1]["content"] += last
    return Transcript.of([READER.read(json.dumps(body), body, 1, dialect) for body in bodies])


def turn(session: Session, transcript: Transcript, applied: str, shown: str = "") -> Session:
    update = SessionUpdate(transcript, {}, "mask", 0, 0, 0, applied, shown=shown)
    return session_after(session, session.find_branch(transcript), update, float(session.branches_opened))


def test_it_stays_where_it_was_until_another_condensation_is_applied() -> None:
    session, seen = NEW, []
    for length, applied in [(1, ""), (3, "c1"), (5, "c1"), (7, "c2"), (9, "c2"), (11, "")]:
        session = turn(session, talk(length), applied)
        seen.append(session.branches[-1].applied_at)
    assert seen == [0, 3, 3, 7, 7, 0]


def test_a_fork_has_applied_it_at_its_own_end() -> None:
    session = turn(turn(NEW, talk(3), "c1"), talk(7), "c1")
    forked = turn(session, talk(5, last=" changed"), "c1")
    assert forked.branches[-1].applied_at == 5


def test_a_head_that_shows_more_is_another_one() -> None:
    session, seen = NEW, []
    for length, shown in [(3, ""), (5, "p"), (7, "p"), (9, "")]:
        session = turn(session, talk(length), "c1", shown)
        seen.append(session.branches[-1].applied_at)
    assert seen == [3, 5, 5, 9]
    stored = decode_document(encode_session(session))
    assert stored is not None
    assert stored.branches == session.branches


@pytest.mark.parametrize("dialect", [CHAT])
def test_where_no_reasoning_is_bound_nothing_is_kept(dialect: Dialect) -> None:
    assert turn(NEW, talk(3, dialect), "c1").branches[-1].applied_at == 0
