"""Which condensations stand in a transcript."""

from dataclasses import replace

from strategies.core.condensation import Condensation, standing_condensations
from strategies.core.pieces import Keep
from tests.support.transcripts import assistant, condensation_of, transcript_of, user

DIGESTS = transcript_of([user("a"), assistant("b"), user("c"), assistant("d")]).digests


def record(covered: int, depth: int = 1, digest: bytes | None = None) -> Condensation:
    digest = digest or DIGESTS[covered - 1]
    return condensation_of(id=f"{covered}-{depth}", digest=digest, covered=covered, depth=depth)


def test_the_longest_covered_prefix_comes_first_then_the_deepest() -> None:
    records = [record(1, 9), record(3, 1), record(3, 2), record(2)]
    assert [each.id for each in standing_condensations(records, DIGESTS)] == ["3-2", "3-1", "2-1", "1-9"]


def test_one_whose_prefix_does_not_stand_is_left_out() -> None:
    other = transcript_of([user("a"), assistant("B"), user("c")]).digests
    assert [each.covered for each in standing_condensations([record(1), record(2), record(3)], other)] == [1]


def test_one_that_covers_more_than_there_is_is_left_out() -> None:
    assert standing_condensations([record(4)], DIGESTS[:3]) == []
    assert standing_condensations([record(1, digest=DIGESTS[0])], []) == []


def test_one_that_is_only_prepared_is_left_out() -> None:
    assert standing_condensations([replace(record(2), standing=False)], DIGESTS) == []


def test_one_that_covers_nothing_is_left_out() -> None:
    assert standing_condensations([replace(record(1), covered=0)], DIGESTS) == []


def test_its_overlay_is_anchored_behind_the_last_message_that_it_covers() -> None:
    overlay = record(3).overlay
    assert (overlay.anchor, overlay.at, overlay.covered, overlay.pieces) == (DIGESTS[2], 3, 3, (Keep(0),))
