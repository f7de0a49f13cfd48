"""Whole sessions, request by request: between two condensations a view only grows at its end (invariant 4).

Each request is replayed with the records made so far, measured, condensed where its size calls for it, and recorded
through the codec, as the driver does it. So what one request sent is what the next one begins with, from the memory of
a process and from a store alike.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.conversations.codec import decode_condensation, encode_condensation
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, replay
from strategies.core.errors import StrategyError
from strategies.core.messages import Message
from strategies.core.plan import head_pieces
from strategies.core.requirement import Requirement, is_called, requirement_for
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from tests.strategies.driving import Reply, attempted, failing, good
from tests.strategies.invariants import faults
from tests.strategies.test_invariants import FEWER, STABLE, VIOLENT
from tests.support.transcripts import (
    WORDS,
    Body,
    agent,
    chat,
    condensation_of,
    conversations,
    largest_of_each_kind,
    message,
    recorded,
    requests_of,
    transcript_of,
    user,
)

PIPELINES = [
    "mask+half-window", "mask", "summary", "half-window", "semantic", "rolling", "dynacontext", "recent", "shorten",
    "extract", "mask+extract+shorten",
]  # fmt: skip


@dataclass
class Simulated:
    """A session as the driver keeps it, without its shell."""

    pipeline: str
    budget: Budget
    reply: Reply = good
    fixed: int = 20
    records: list[Condensation] = field(default_factory=list)
    last: str | None = None
    sent: str = "[]"
    first: str = ""
    condensed: int = 0
    wanders: bool = False
    known: dict[int, Message] = field(default_factory=dict)

    def request(self, bodies: list[Body]) -> View:
        """Handles one request that goes on with the last one, and checks what it sends."""
        before = self.sent.rstrip("]")
        transcript = Transcript.of([self._read(body) for body in bodies])
        view = self.handled(transcript)
        assert self.first.startswith(before)
        return view

    def _read(self, body: Body) -> Message:
        """A body is read once, as the measurer does it by a message's bytes."""
        if id(body) not in self.known:
            self.known[id(body)] = message(body)
        return self.known[id(body)]

    def handled(self, transcript: Transcript) -> View:
        """Replays, condenses where that is required, and checks what is sent."""
        found = replay(transcript, self.records, self.fixed, WORDS, self.budget, self.last)
        view, applied = found.view, found.applied
        self.first = view.to_json()
        since = applied.tokens_after if applied else None
        called = is_called(view, self.budget)
        requirement = requirement_for(view.tokens, self.budget, since=since, called=called)
        made = self._condense(requirement, view, applied) if requirement else None
        if made:
            view = fold(transcript, (made.overlay,), self.fixed, WORDS)
            self.condensed += 1
        assert faults(view, None if self.wanders else self.budget, shortened=True) == []
        self.last = made.id if made else applied.id if applied else ""
        self.sent = view.to_json()
        return view

    def _condense(self, requirement: Requirement, view: View, applied: Condensation | None) -> Condensation | None:
        try:
            after = attempted(requirement, self.pipeline, view, self.budget, self.reply).view
        except StrategyError:
            return None
        made = recorded_as(after, self.budget, view.tokens, applied)
        again = decode_condensation(encode_condensation(made), standing=True)
        assert again is not None
        assert fold(view.transcript, (again.overlay,), self.fixed, WORDS).to_json() == after.to_json()
        self.records.append(again)
        return again


def recorded_as(after: View, budget: Budget, before: int, parent: Condensation | None = None) -> Condensation:
    """The record of a view that was just condensed."""
    digest, depth = after.transcript.digests[after.covered_count - 1], parent.depth + 1 if parent else 1
    return condensation_of(
        id=f"c{digest.hex()[:12]}-{depth}",
        digest=digest,
        covered=after.covered_count,
        depth=depth,
        pieces=head_pieces(after),
        window=budget.window,
        tokens_before=before,
        tokens_after=after.tokens,
        parent=parent.id if parent else None,
    )


def simulated(pipeline: str, bodies: list[Body], window: int, reply: Reply = good) -> Simulated:
    session = Simulated(pipeline, Budget.of(window), reply)
    for request in requests_of(bodies):
        session.request(request)
    return session


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_long_agent_session_condenses_and_grows_only_at_its_end(pipeline: str) -> None:
    session = simulated(pipeline, agent(60, size=60), window=2_000)
    assert 2 <= session.condensed <= 30


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_long_chat_condenses_and_grows_only_at_its_end(pipeline: str) -> None:
    session = simulated(pipeline, chat(60, size=60), window=2_000)
    assert session.condensed <= 30
    if pipeline not in ("mask", "shorten"):
        assert session.condensed >= 2


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(bodies=conversations(at_most=40), window=st.sampled_from([300, 900, 2_500]), reachable=st.booleans())
@FEWER
def test_sessions_grow_only_at_their_end(pipeline: str, bodies: list[Body], window: int, reachable: bool) -> None:
    simulated(pipeline, bodies, window, good if reachable else failing)


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(bodies=conversations(broken=True, at_most=40), window=st.sampled_from([300, 900, 2_500]))
@FEWER
def test_sessions_of_broken_clients_grow_only_at_their_end(pipeline: str, bodies: list[Body], window: int) -> None:
    simulated(pipeline, bodies, window)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_many_generated_sessions_grow_only_at_their_end(pipeline: str) -> None:
    @given(bodies=conversations(broken=True, at_most=80), window=st.sampled_from([300, 900, 2_500, 6_000]))
    @VIOLENT
    def check(bodies: list[Body], window: int) -> None:
        simulated(pipeline, bodies, window)

    check()


def test_recorded_sessions_grow_only_at_their_end() -> None:
    sessions = [simulated("mask+half-window", one.messages, 2_000) for one in largest_of_each_kind(at_most=80)]
    assert sum(session.condensed for session in sessions) > len(sessions)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("window", [4_000, 8_000, 32_000])
def test_all_recorded_sessions_grow_only_at_their_end(pipeline: str, window: int) -> None:
    for one in [*recorded(), *recorded("traces-dev-long")]:
        if len(one.messages) < 1_000:
            simulated(pipeline, one.messages, window)


# --- clients that go back ---------------------------------------------------------------------------------------


@given(
    bodies=conversations(broken=True, at_most=40),
    visits=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([300, 900, 2_500, 9_000]), st.booleans(), st.booleans()),
        min_size=2,
        max_size=10,
    ),
    pipeline=st.sampled_from(PIPELINES),
)
@STABLE
def test_a_client_that_rewinds_or_edits_gets_sound_views(
    bodies: list[Body], visits: list[tuple[float, int, bool, bool]], pipeline: str
) -> None:
    session = Simulated(pipeline, Budget.of(300), wanders=True)
    for share, window, edited, lost in visits:
        end = max(int(len(bodies) * share), 1)
        sent = [*bodies[: end - 1], user(f"edited {share}")] if edited else bodies[:end]
        session.budget = Budget.of(window)
        session.last = None if lost else session.last
        session.handled(transcript_of(sent))
