"""Three replicas on one Redis forward what one process forwards, whichever of them a turn comes to.

The small form runs with all other tests; `-m torture` runs fifty conversations at once and prints the figures of
docs/internals/reliability.md.
"""

import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import pytest

from tests.http.recorded import SHORT
from tests.support.redis_server import RedisServer
from tests.torture.clients import PACE, Run, Turn, fleet, run_all
from tests.torture.figures import figures
from tests.torture.judging import assert_sound
from tests.torture.talks import Talk, talks

REPLICAS = 3
FEW, MANY = 4, 50


def test_a_few_conversations_are_forwarded_by_replicas_as_by_one_process(tmp_path: Path) -> None:
    few = sorted(talks(4 * FEW, [SHORT]), key=lambda talk: len(talk.ends))[:FEW]
    run, alone = _both(few, tmp_path)
    assert alone.actions["condensed"] >= FEW
    _assert_equal(run, alone, few)


@pytest.mark.torture
@pytest.mark.timeout(240)
def test_fifty_conversations_are_forwarded_by_replicas_as_by_one_process(tmp_path: Path) -> None:
    many = talks(MANY)
    run, alone = _both(many, tmp_path, PACE)
    sys.stderr.write(
        f"\n{figures('one process', alone, _same(alone, alone))}\n{figures('three replicas', run, _same(run, alone))}\n"
    )
    assert alone.actions["condensed"] >= MANY
    _assert_equal(run, alone, many)
    assert_sound(run, many)


def _both(talks: Sequence[Talk], folder: Path, pace: float = 0.0) -> tuple[Run, Run]:
    """What three replicas make of all conversations, and what one process does."""
    with (
        RedisServer() as redis,
        fleet(REPLICAS, redis.url) as several,
        fleet(1, f"sqlite:///{folder}/alone.db") as single,
    ):
        return run_all(several, talks, pace=pace), run_all(single, talks, pace=pace)


def _same(run: Run, alone: Run) -> dict[Turn, str]:
    """The turns for which the bytes are those of a single process."""
    return {turn: "same" for turn, each in run.outcomes.items() if each.body == alone.outcomes[turn].body}


def _assert_equal(run: Run, alone: Run, talks: Sequence[Talk]) -> None:
    """The same bytes for each turn; on a machine without time for us, up to where the store seemed to hang."""
    assert run.outcomes.keys() == alone.outcomes.keys()
    assert run.is_starved or run.actions["degraded"] == 0
    for talk in talks:
        of_talk = [(run.outcomes[talk.index, end], alone.outcomes[talk.index, end]) for end in talk.ends]
        for ours, single in takewhile(lambda pair: pair[0].action != "degraded", of_talk):
            assert ours.body == single.body
