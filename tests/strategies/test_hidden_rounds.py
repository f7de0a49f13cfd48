"""Hidden memory rounds in a transcript: where views show them, and that every strategy copes with them."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.core.errors import StrategyError
from strategies.core.messages import dump
from strategies.core.pieces import Keep, Literal, Overlay, PieceKind
from strategies.core.plan import head_pieces, violations
from strategies.core.requirement import Requirement
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from tests.strategies.driving import attempted
from tests.strategies.test_invariants import FEWER, PIPELINES, WINDOWS
from tests.support.transcripts import WORDS, Body, assistant, bodies_of, call, conversations, tool, transcript_of, user

CHAT: list[Body] = [user("one"), assistant("two"), user("three"), assistant("four"), user("five")]


def patch_at(transcript: Transcript, at: int, words: str = "found") -> Overlay:
    """A hidden round before the chain message `at`."""
    bodies = [assistant(None, call(f"hidden{at}", "search_memory")), tool(f"hidden{at}", words)]
    pieces = tuple(Literal(dump(each), PieceKind.PATCH) for each in bodies)
    return Overlay(transcript.digests[at - 1], at, 0, pieces)


def patched(bodies: list[Body], *places: int) -> Transcript:
    transcript = transcript_of(bodies)
    return replace(transcript, patches=tuple(patch_at(transcript, at) for at in places))


def texts(view: View) -> list[Any]:
    return [body["content"] for body in bodies_of(view)]


def test_a_hidden_round_stands_behind_the_message_that_it_followed() -> None:
    view = fold(patched(CHAT, 1, 3), (), 0, WORDS)
    assert texts(view) == ["one", None, "found", "two", "three", None, "found", "four", "five"]
    assert view.is_changed
    assert view.tokens == sum(WORDS.message(body) for body in bodies_of(view))


@pytest.mark.parametrize(("covered", "shown"), [(2, True), (3, False), (4, False)])
def test_it_leaves_with_a_head_that_reaches_to_its_place(covered: int, shown: bool) -> None:
    transcript = patched(CHAT, 3)
    head = Overlay(transcript.digests[covered - 1], covered, covered, (Keep(0),))
    assert ("found" in texts(fold(transcript, (head,), 0, WORDS))) is shown


def test_it_stands_before_a_memory_block_at_the_same_place() -> None:
    transcript = patched([user("one"), user("two")], 1)
    block = Overlay(transcript.digests[0], 1, 0, (Literal(dump(assistant("block")), PieceKind.MEMORY),))
    assert texts(fold(transcript, (block,), 0, WORDS)) == ["one", None, "found", "block", "two"]


def may_be_patched(transcript: Transcript) -> list[int]:
    chain = transcript.chain
    return [at for at in range(1, len(chain)) if not chain[at].is_result]


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(
    bodies=conversations(),
    window=st.sampled_from(WINDOWS),
    seed=st.integers(0, 7),
    requirement=st.sampled_from([Requirement.SOFT, Requirement.HARD, Requirement.FORCED]),
)
@FEWER
def test_no_strategy_breaks_over_them(
    pipeline: str, bodies: list[Body], window: int, seed: int, requirement: Requirement
) -> None:
    transcript = transcript_of(bodies)
    places = [at for at in may_be_patched(transcript) if (at + seed) % 3 == 0]
    patches = tuple(patch_at(transcript, at, "found " * 40) for at in places)
    view = fold(replace(transcript, patches=patches), (), 0, WORDS)
    outcome = None
    with suppress(StrategyError):
        outcome = attempted(requirement, pipeline, view, Budget.of(window))
    if outcome is None:
        return
    after = outcome.view
    head = Overlay(
        transcript.digests[after.covered_count - 1], after.covered_count, after.covered_count, head_pieces(after)
    )
    again = fold(view.transcript, (head,), 0, WORDS)
    assert again.tokens <= after.tokens < view.tokens
    assert violations(again.item_messages) <= violations(transcript.chain)
