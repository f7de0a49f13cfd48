"""Recitals in a view: where they stand, when one is due, and that every strategy copes with them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.core.errors import StrategyError
from strategies.core.ledger import Ledger, append_ledger
from strategies.core.messages import Form, Role, dump
from strategies.core.pieces import Keep, Literal, Overlay, PieceKind
from strategies.core.plan import newest_is_shortened
from strategies.core.replacement import replacement
from strategies.core.requirement import Requirement
from strategies.core.transcript import Transcript, standing_patches
from strategies.core.view import View, fold
from strategies.memory.recital import FAR, recital
from tests.strategies.driving import attempted, overlay_of, texts
from tests.strategies.invariants import faults
from tests.strategies.test_hidden_rounds import patch_at
from tests.strategies.test_invariants import FEWER, PIPELINES, WINDOWS
from tests.support.strict_servers import accepted, refusal_of
from tests.support.transcripts import (
    WORDS,
    Body,
    assistant,
    bodies_of,
    conversations,
    transcript_of,
    user,
    view_of,
    words,
)

CHAT: list[Body] = [user("one"), assistant("two"), user("three"), assistant("four"), user("five")]
STRICT = Form(alternate_roles=True, assistant_name=False, empty_assistant=False, middle_system=False)
RULES = ("Never water at noon.", "Always wear gloves in the greenhouse.", "TODO: order the soil.")


def recital_at(transcript: Transcript, at: int, text: str = "[recital]") -> Overlay:
    return Overlay(transcript.digests[at - 1], at, 0, (Literal(dump(user(text)), PieceKind.RECITAL),))


def reciting(bodies: Sequence[Body], *places: int, form: Form | None = None) -> Transcript:
    transcript = transcript_of(bodies)
    return transcript.having(patches=tuple(recital_at(transcript, at) for at in places), form=form)


# --- where they stand -------------------------------------------------------------------------------------------


def test_it_stands_behind_its_user_message_also_if_that_is_the_last_one() -> None:
    view = fold(reciting(CHAT, 1, 5), (), 0, WORDS)
    assert texts(view) == ["one", "[recital]", "two", "three", "four", "five", "[recital]"]
    assert view.tokens == sum(WORDS.message(body) for body in bodies_of(view))
    assert view.last_cut == fold(transcript_of(CHAT), (), 0, WORDS).last_cut + 1
    longer = fold(reciting([*CHAT, assistant("six"), user("seven")], 1, 5), (), 0, WORDS)
    assert longer.to_json().startswith(view.to_json()[:-1])


def test_where_roles_alternate_it_is_part_of_the_users_message() -> None:
    view = fold(reciting(CHAT, 5, form=STRICT), (), 0, WORDS)
    assert refusal_of(bodies_of(view)) == ""
    assert bodies_of(view)[-1]["content"] == "five\n\n[recital]"


def test_it_shares_a_place_with_a_hidden_round_and_comes_first() -> None:
    transcript = transcript_of(CHAT)
    patches = (patch_at(transcript, 3), recital_at(transcript, 3))
    standing = standing_patches(patches, transcript)
    assert standing == (patches[1], patches[0])
    shown = texts(fold(transcript.having(patches=standing), (), 0, WORDS))
    assert shown == ["one", "two", "three", "[recital]", "", "found", "four", "five"]


def test_it_stands_only_behind_the_words_that_it_was_put_behind() -> None:
    transcript = transcript_of(CHAT)
    placed = (recital_at(transcript, 5),)
    assert standing_patches(placed, transcript) == placed
    assert standing_patches((patch_at(transcript, 5),), transcript) == ()
    assert standing_patches(placed, transcript_of([*CHAT[:4], user("other")])) == ()
    assert standing_patches(placed, transcript_of(CHAT[:4])) == ()


# --- when one is due --------------------------------------------------------------------------------------------


def below_record(tokens: int, *, recited: bool = False) -> View:
    """A view whose record has `RULES`, with a question about so many tokens below it."""
    transcript = transcript_of([user("task"), assistant("a"), user("b"), assistant(words(tokens)), user("And now?")])
    record = replacement(append_ledger("A garden.", Ledger(RULES)), 2, WORDS.dialect)
    head = Overlay(transcript.digests[1], 2, 2, (Keep(0), record))
    patches = (recital_at(transcript, 3),) if recited else ()
    return fold(transcript.having(patches=patches), (head,), 0, WORDS)


def test_rules_that_are_far_above_are_repeated_within_the_tokens_that_it_may_have() -> None:
    raw = recital(below_record(4_000), 60) or ""
    assert RULES[0] in raw
    assert RULES[1] in raw
    assert RULES[2] not in raw
    shorter = recital(below_record(4_000), 45) or ""
    assert (RULES[0] in shorter) is not (RULES[1] in shorter)
    for tokens in (0, 10, 25):
        assert recital(below_record(4_000), tokens) is None


def test_far_is_many_times_as_far_as_it_is_long_from_where_the_rules_were_told_last() -> None:
    raw = recital(below_record(4_000), 60)
    assert raw is not None
    size = WORDS.message({"role": "user", "content": raw})
    assert recital(below_record(FAR * size // 2), 60) is None
    assert recital(below_record(FAR * size + 10), 60) is not None
    assert recital(below_record(FAR * size // 2, recited=True), 60) is None
    assert recital(view_of(CHAT), 60) is None


# --- under every strategy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(
    bodies=conversations(),
    window=st.sampled_from(WINDOWS),
    requirement=st.sampled_from([Requirement.SOFT, Requirement.HARD, Requirement.FORCED]),
)
@FEWER
def test_every_strategy_keeps_the_invariants_with_them(
    pipeline: str, bodies: list[Body], window: int, requirement: Requirement
) -> None:
    bodies = accepted(bodies)
    plain = transcript_of(bodies)
    places = [at + 1 for at, message in enumerate(plain.chain) if message.role is Role.USER]
    transcript, budget = reciting(bodies, *places), Budget.of(window)
    view, outcome = fold(transcript, (), 0, WORDS), None
    with suppress(StrategyError):
        outcome = attempted(requirement, pipeline, view, budget)
    after = outcome.view if outcome else view
    found = faults(after, budget if outcome else None, shortened=newest_is_shortened(after))
    # Only what a condensation pays for is put in, which the proxy's tests show.
    assert [fault for fault in found if not fault.startswith("the view has ")] == []
    heads = (overlay_of(after),) if outcome else ()
    strict = fold(transcript.having(form=STRICT), heads, 0, WORDS)
    assert refusal_of(bodies_of(strict)) == "" or refusal_of(bodies)
    if bodies and bodies[-1]["role"] == "user":
        longer = transcript_of([*bodies, assistant("Good."), user("And?")])
        later = fold(replace(longer, patches=transcript.patches, form=STRICT), heads, 0, WORDS)
        assert later.to_json().startswith(strict.to_json()[:-1])
