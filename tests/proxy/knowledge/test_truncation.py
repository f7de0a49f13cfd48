"""The proofs that an upstream has not read a prompt whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.knowledge.learned_windows import CountedReply, kept_by


def kept(*replies: tuple[int, int], loaded: int | None = None) -> int | None:
    """What these replies prove, each our own count and the upstream's."""
    return kept_by([CountedReply(*each) for each in replies], max(counted for _, counted in replies), loaded)


def test_three_prompts_of_clearly_different_length_with_one_count_are_a_proof() -> None:
    assert kept((5_000, 4_096), (6_000, 4_096)) is None
    assert kept((5_000, 4_096), (6_000, 4_096), (7_000, 4_096)) == 4_096
    assert kept((7_000, 4_096), (5_000, 4_096), (6_000, 4_096)) == 4_096


def test_prompts_of_other_lengths_in_between_change_nothing() -> None:
    assert kept((5_000, 4_096), (300, 310), (6_000, 4_096), (4_000, 4_050), (7_000, 4_096)) == 4_096


@pytest.mark.parametrize(
    "replies",
    [
        [(9_000, 4_096)] * 9,  # one prompt, sent again and again
        [(9_000, 4_096), (9_200, 4_096), (9_400, 4_096)],  # hardly longer ones
        [(9_000, 4_000), (12_000, 4_090), (15_000, 4_095)],  # counts that only are alike
        [(5_000, 3_350), (6_000, 4_020), (7_000, 4_690), (8_000, 5_360)],  # another tokenizer
        [(5_000, 500), (6_000, 500), (7_000, 500)],  # no server is started with so small a window
        [(400, 5_000), (6_000, 5_000), (7_000, 5_000), (9_000, 5_000)],  # an invented count, also for a short prompt
        [(9_000, 8_800), (5_000, 4_096), (6_000, 4_096), (7_000, 4_096)],  # it has read more before
    ],
)
def test_anything_less_proves_nothing(replies: Sequence[tuple[int, int]]) -> None:
    assert all(kept(*replies[: end + 1]) is None for end in range(len(replies)))


def test_a_longer_prompt_counted_as_exactly_the_loaded_window_is_a_proof() -> None:
    assert kept((9_000, 4_096), loaded=4_096) == 4_096
    assert kept((9_000, 4_095), loaded=4_096) is None
    assert kept((4_200, 4_096), loaded=4_096) is None  # as long as the window by another tokenizer


def test_counts_and_estimates_by_length_are_not_compared() -> None:
    replies = [CountedReply(5_000, 4_096, False), CountedReply(6_000, 4_096, True), CountedReply(7_000, 4_096, True)]
    assert kept_by(replies) is None
    assert kept_by([*replies, CountedReply(8_000, 4_096, True)]) == 4_096
