"""Which condensation a transcript's view applies."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, Replayed, is_held_back, prepared_in, replay
from strategies.core.messages import dump
from strategies.core.pieces import Keep, Literal, PieceKind
from tests.support.transcripts import WORDS, Body, assistant, chat, condensation_of, transcript_of, user

BODIES = chat(8, size=50)
WINDOW = 1_000


def record(
    bodies: list[Body], covered: int, depth: int = 1, window: int = WINDOW, text: str = "[summary]"
) -> Condensation:
    return condensation_of(
        id=f"{covered}-{depth}",
        digest=transcript_of(bodies).digests[covered - 1],
        covered=covered,
        depth=depth,
        pieces=(Keep(0), Literal(dump(user(text)), PieceKind.REPLACEMENT)),
        window=window,
    )


def replayed(
    records: list[Condensation], bodies: list[Body] = BODIES, window: int | None = WINDOW, last: str | None = None
) -> Replayed:
    budget = None if window is None else Budget.of(window)
    return replay(transcript_of(bodies), records, 10, WORDS, budget, last)


def applied(found: Replayed) -> str:
    return found.applied.id if found.applied else ""


RECORDS = [record(BODIES, 2), record(BODIES, 6), record(BODIES, 6, depth=2), record(BODIES, 4)]


@pytest.mark.parametrize("window", [300, WINDOW, None])
def test_the_longest_that_stands_is_applied_then_the_deepest(window: int | None) -> None:
    found = replayed(RECORDS, window=window)
    assert applied(found) == "6-2"
    assert found.view.covered_count == 6


def test_without_records_the_transcript_is_the_view() -> None:
    found = replayed([])
    assert found.applied is None
    assert not found.view.is_changed


def test_a_record_of_another_history_is_not_applied() -> None:
    other = [*BODIES[:4], user("Something else?"), *BODIES[5:]]
    assert applied(replayed(RECORDS, other)) == "2-1"


def test_what_the_branchs_last_view_applied_is_applied_again() -> None:
    assert applied(replayed(RECORDS, last="4-1")) == "4-1"
    assert applied(replayed(RECORDS, last="4-1", window=None)) == "4-1"


def test_a_branch_whose_last_view_applied_nothing_rests_on_the_transcript() -> None:
    assert applied(replayed(RECORDS, last="", window=4_000)) == ""
    assert applied(replayed(RECORDS, last="", window=None)) == ""


def test_a_branch_that_outgrows_the_trigger_goes_on_to_the_longest() -> None:
    assert applied(replayed(RECORDS, last="2-1", window=400)) == "6-2"
    assert applied(replayed(RECORDS, last="", window=400)) == "6-2"


def test_a_branch_whose_record_is_gone_takes_the_longest() -> None:
    assert applied(replayed(RECORDS, last="gone")) == "6-2"


def test_without_a_known_branch_a_record_applies() -> None:
    """A fork behind a condensation reads its ancestors': the upstream has cached what they sent."""
    fork = [*BODIES[:-1], user("Something else?")]
    assert applied(replayed(RECORDS, fork, window=WINDOW, last=None)) == "6-2"


def test_a_larger_window_gets_the_longest_view_that_fits_under_its_trigger() -> None:
    assert applied(replayed(RECORDS, window=2_000)) == ""
    tight = [record(BODIES, 2), record(BODIES, 6), record(BODIES, 12)]
    sizes = {applied(found): found.view.tokens for found in (replayed([each]) for each in tight)}
    window = int((sizes["2-1"] + 10) / 0.85 / 0.875) + 20
    small = [replace(each, window=window - 1) for each in tight]
    assert applied(replayed(small, window=window)) == "2-1"


def test_a_larger_window_in_which_nothing_fits_gets_the_best_there_is() -> None:
    assert applied(replayed([replace(each, window=100) for each in RECORDS], window=120)) == "6-2"


def test_a_record_for_a_larger_window_is_used_in_a_smaller_one() -> None:
    assert applied(replayed([replace(RECORDS[1], window=8_000)])) == "6-1"


def test_a_head_that_hides_the_newest_round_is_passed_over() -> None:
    """After a rewind the newest round and the last user message may lie inside an old head."""
    rewound = BODIES[:7]
    assert transcript_of(rewound).digests[-1] == RECORDS[2].digest
    assert applied(replayed(RECORDS, rewound)) == "4-1"


def test_a_head_that_hides_the_last_user_message_is_passed_over() -> None:
    rewound = [*BODIES[:6]]
    longer = record(BODIES, 5)
    assert applied(replayed([longer, record(BODIES, 2)], rewound)) == "2-1"


def test_a_head_in_which_shorten_cut_the_newest_round_stands() -> None:
    bodies: list[Body] = [user("go"), assistant("```ls```"), user("Observation: a b c")]
    cut = Literal(dump(user("Observation: a")), PieceKind.SHORTENED, 2)
    made = replace(record(bodies, 3), pieces=(Keep(0), Keep(1), cut))
    assert applied(replayed([made], bodies)) == "3-1"


def test_a_prepared_record_is_not_replayed() -> None:
    assert applied(replayed([replace(RECORDS[1], standing=False)])) == ""


@pytest.mark.parametrize("last", [None, "", "4-1"])
@pytest.mark.parametrize("window", [None, 200, 1_000, 50_000])
def test_replaying_twice_gives_the_same_view(window: int | None, last: str | None) -> None:
    one, other = replayed(RECORDS, window=window, last=last), replayed(RECORDS[::-1], window=window, last=last)
    assert one.view.to_json() == other.view.to_json()


def taken_back(each: Condensation) -> Condensation:
    return replace(each, standing=False, reverted=True)


@given(st.sets(st.sampled_from(range(len(RECORDS)))), st.sampled_from([None, "", *(each.id for each in RECORDS)]))
def test_what_was_taken_back_is_never_applied(gone: set[int], last: str | None) -> None:
    records = [taken_back(each) if i in gone else each for i, each in enumerate(RECORDS)]
    found = replayed(records, last=last)
    ids = {RECORDS[i].id for i in gone}
    assert applied(found) not in ids
    assert not ids & {each.id for each in prepared_in(records, transcript_of(BODIES).digests, None)}
    reached = (found.applied.covered, found.applied.depth) if found.applied else (0, 0)
    further = any((RECORDS[i].covered, RECORDS[i].depth) > reached for i in gone)
    assert is_held_back(records, transcript_of(BODIES).digests, found.applied) is further
