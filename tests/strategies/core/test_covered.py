"""Covered messages: how much of a long history is read for one condensation."""

from strategies.core.covered import MOST, OLDEST_SHARE, covered
from tests.support.transcripts import user, view_of


def test_of_a_long_history_the_newest_and_the_oldest_messages_are_read() -> None:
    view = view_of(user("abc " * 15_000) for _ in range(50))
    size = len(view.transcript.chain[0].data)
    oldest, newest = int(MOST * OLDEST_SHARE) // size, int(MOST * (1 - OLDEST_SHARE)) // size

    read = [index for index, _ in covered(view, view.items, 50, 0).messages]

    assert (oldest, newest) == (3, 29)
    assert read == [*range(oldest), *range(50 - newest, 49)]  # the last one is the question, which stays
