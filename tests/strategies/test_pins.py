"""Pinned messages stay word for word through every condensation, with their calls and results, inside their share."""

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.core.condensation import replay
from strategies.core.errors import StrategyError
from strategies.core.pieces import Keep, Literal, PieceKind, with_kept
from strategies.core.requirement import Requirement
from strategies.core.rounds import structure
from strategies.core.transcript import PIN_SHARE, Transcript, pinned_in
from strategies.core.view import View, fold
from tests.strategies.dialects import test_messages_views, test_responses_views
from tests.strategies.driving import Reply, attempted, condensed, overlay_of
from tests.strategies.invariants import faults_beside_pairs
from tests.strategies.test_invariants import FEWER, STABLE, replies
from tests.strategies.test_session_simulation import PIPELINES, Simulated, recorded_as
from tests.support.messages_drafts import messages_conversations
from tests.support.responses_drafts import request_of, responses_conversations
from tests.support.strict_responses import refusal_of
from tests.support.transcripts import WORDS, Body, agent, chat, conversations, requests_of, transcript_of, view_of


@dataclass
class Pinning(Simulated):
    """A session in which a person pins messages between requests."""

    pins: list[bytes] = field(default_factory=list)

    def handled(self, transcript: Transcript) -> View:
        pinned = pinned_in(self.pins, transcript, self.budget.window)
        view = super().handled(transcript.having(pinned=pinned))
        assert_shown(view)
        return view

    def request(self, bodies: list[Body]) -> View:
        view = super().request(bodies)
        self.sent = "[]"  # what is pinned next changes the beginning of the next view
        return view


def assert_shown(view: View) -> None:
    """All that is pinned stands once, as the client sent it."""
    chain, pinned = view.transcript.chain, view.transcript.pinned
    shown = [item.source for item in view.items if item.source in pinned and item.message.raw == chain[item.source].raw]
    assert shown == sorted(pinned)


def all_pinned(view: View, window: int, places: list[int]) -> View:
    digests = view.transcript.digests
    nodes = [digests[place % len(digests)] for place in places] if digests else []
    transcript = view.transcript.having(pinned=pinned_in(nodes, view.transcript, window))
    return fold(transcript, (), view.fixed_tokens - view.transcript.system_tokens, view.counter)


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(
    bodies=conversations(broken=True, at_most=40),
    window=st.sampled_from([300, 900, 2_500]),
    pinned=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 60)), max_size=6),
    reply=replies,
)
@FEWER
def test_a_pinned_message_stands_in_every_later_view_until_it_is_unpinned(
    pipeline: str, bodies: list[Body], window: int, pinned: list[tuple[int, int]], reply: Reply
) -> None:
    session = Pinning(pipeline, Budget.of(window), reply)
    for number, request in enumerate(requests_of(bodies)):
        view = session.request(request)
        digests = view.transcript.digests
        nodes = [digests[place % len(digests)] for at, place in pinned if at == number and digests]
        session.pins = [each for each in session.pins if each not in nodes]  # pinned twice: unpinned
        session.pins += [each for each in nodes if each not in session.pins]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_session_with_pins_still_condenses(pipeline: str) -> None:
    session = Pinning(pipeline, Budget.of(2_000))
    for number, request in enumerate(requests_of(agent(60, size=60))):
        digests = session.request(request).transcript.digests
        session.pins += [digests[-1]] if number in (3, 20, 40) else []
    assert session.condensed >= 2


def assert_messages(view: View) -> None:
    """The Messages API takes this view."""
    assert test_messages_views.refusals(json.loads(view.to_json())) == []


def assert_responses(view: View) -> None:
    """The Responses API takes this view."""
    assert faults_beside_pairs(view, None, shortened=True) == []
    assert refusal_of(request_of(json.loads(view.to_json()))) is None


@pytest.mark.parametrize(
    ("bodies", "view_of", "assert_taken"),
    [
        pytest.param(messages_conversations(), test_messages_views.view_of, assert_messages, id="messages"),
        pytest.param(responses_conversations(), test_responses_views.view_of, assert_responses, id="responses"),
    ],
)
@pytest.mark.parametrize("pipeline", PIPELINES)
@given(data=st.data(), places=st.lists(st.integers(0, 60), max_size=4), window=st.sampled_from([1_000, 2_500]))
@settings(FEWER, max_examples=FEWER.max_examples // 2)
def test_upstreams_of_other_apis_take_pins(
    pipeline: str, bodies: Any, view_of: Any, assert_taken: Any, data: Any, places: list[int], window: int
) -> None:
    view = all_pinned(view_of(data.draw(bodies), 0), window, places)
    with suppress(StrategyError):
        after = attempted(Requirement.HARD, pipeline, view, Budget.of(window)).view
        assert_shown(after)
        assert_taken(after)


@given(bodies=conversations(), place=st.integers(0, 60))
@STABLE
def test_what_stays_with_a_message_is_what_no_cut_parts_from_it(bodies: list[Body], place: int) -> None:
    transcript = transcript_of(bodies)
    if transcript.chain:
        index, cuts = place % len(transcript.chain), structure(transcript.chain).cuts
        start = max(i for i in range(index + 1) if cuts[i])
        end = min(i for i in range(index + 1, len(cuts)) if cuts[i])
        assert pinned_in([transcript.digests[index]], transcript, None) == set(range(start, end))


def test_a_pinned_call_stays_with_its_results() -> None:
    transcript = transcript_of(agent(4))
    call, result = transcript.digests[3], transcript.digests[4]
    assert pinned_in([call], transcript, None) == pinned_in([result], transcript, None) == {3, 4}


def test_pins_have_an_eighth_of_the_window_and_the_first_come_first() -> None:
    transcript = transcript_of(chat(8, size=50))
    answers = [transcript.digests[i] for i in (1, 3, 5)]
    window = PIN_SHARE * sum(transcript.chain[i].tokens for i in (1, 5))
    assert pinned_in(answers, transcript, window) == {1, 3}
    assert pinned_in(answers[::-1], transcript, window) == {3, 5}
    assert pinned_in(answers, transcript, None) == {1, 3, 5}
    assert pinned_in([b"of another conversation"], transcript, None) == frozenset()


def test_a_message_pinned_later_comes_back_behind_the_record() -> None:
    view = view_of(chat(30))
    after = condensed("extract", view, Budget.of(2_000))
    pinned = view.transcript.having(pinned=frozenset({5}))
    shown = fold(pinned, (overlay_of(after),), 0, WORDS)
    assert [item.source for item in shown.items][:3] == [0, None, 5]
    assert fold(view.transcript, (overlay_of(after),), 0, WORDS).to_json() == after.to_json()


def test_a_condensation_of_nothing_but_pinned_messages_is_not_applied() -> None:
    view = view_of(chat(30))
    after = condensed("extract", view, Budget.of(2_000))
    record = recorded_as(after, Budget.of(2_000), view.tokens)
    pinned = view.transcript.having(pinned=frozenset(range(record.covered)))
    assert replay(view.transcript, [record], 0, WORDS, None, record.id).applied == record
    assert replay(pinned, [record], 0, WORDS, None, record.id).applied is None


def test_a_masked_message_is_whole_again_once_it_is_pinned() -> None:
    view = view_of(agent(30, size=100))
    after = condensed("mask", view, Budget.of(2_000))
    assert not after.items[2].intact
    shown = fold(view.transcript.having(pinned=frozenset({1, 2})), (overlay_of(after),), 0, WORDS)
    assert shown.items[2].intact
    assert shown.size == after.size


def test_what_is_pinned_goes_with_the_first_condensation_after_it_is_unpinned() -> None:
    view = view_of(chat(30))
    kept = condensed(
        "extract", replace(view, transcript=view.transcript.having(pinned=frozenset({5}))), Budget.of(2_000)
    )
    longer = fold(transcript_of(chat(60)), (overlay_of(kept),), 0, WORDS)
    assert 5 in [item.source for item in longer.items]
    assert 5 not in [item.source for item in condensed("extract", longer, Budget.of(2_000)).items]


def test_pieces_that_show_all_that_is_kept_stay_as_they_are() -> None:
    record = Literal("{}", PieceKind.REPLACEMENT)
    assert with_kept((Keep(0), record, Keep(4)), {0, 4}) == (Keep(0), record, Keep(4))
    assert with_kept((Keep(0), record, Keep(4)), {2, 7}) == (Keep(0), record, Keep(2), Keep(4), Keep(7))
    assert with_kept((Literal("{}", PieceKind.MASKED, 3),), {3}) == (Keep(3),)
