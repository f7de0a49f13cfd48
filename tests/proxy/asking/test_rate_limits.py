"""A server that limits its rate refuses clients as often as it would without background work.

The server takes a number of requests in each span of the clock, which the test moves. Clients that were refused come
back when they were told to, all at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from proxy.asking.dispatch import GRACE
from proxy.settings.tables import JudgeRole
from strategies.core.effects import Ask, Ballot, Failure, Vote, Votes
from tests.proxy.asking.support import LATER, RecordedAsking, asking
from tests.support.recording import Exchange
from tests.support.replies import Reply, completion, error
from tests.support.upstream import ScriptedUpstream
from tests.support.virtual_time import Clock

pytestmark = pytest.mark.anyio

SPAN, LIMIT, CLIENTS = 5, 10, 45
BALLOT = Ballot("judge", "?", 5, 15, 10)
YES = "<reasoning>r</reasoning><decision>YES</decision>"


class Limited:
    """Takes `limit` requests in each span, and remembers who asked."""

    def __init__(self, upstream: ScriptedUpstream, clock: Clock) -> None:
        self.limit = LIMIT
        self.asked: list[str] = []
        self._clock = clock
        self._taken: Counter[float] = Counter()
        upstream.answer(self._answer)

    def _answer(self, exchange: Exchange) -> Reply:
        self.asked.append(exchange.json()["messages"][0]["content"])
        span = self._clock.now // SPAN
        self._taken[span] += 1
        if self._taken[span] > self.limit:
            return error(429, headers=[("retry-after", str(SPAN))])
        return completion(YES)


async def wave(own: RecordedAsking, waiting: int) -> int:
    """So many clients ask at once; how many of them were refused."""
    with own.asking.lane.foreground():
        found = await asyncio.gather(*(own.ask(Ask("client", "?", 10)) for _ in range(waiting)))
    return sum(result == (Failure("rate-limited"),) for result in found)


async def served(own: RecordedAsking, clock: Clock, *, judged: bool) -> tuple[int, list[asyncio.Task[Votes]]]:
    """How often clients are refused until each has its reply, and the ballots that are begun after each."""
    refused, waiting, ballots = 0, CLIENTS, []
    while waiting:
        before, waiting = waiting, await wave(own, waiting)
        refused += waiting
        ballots += [asyncio.create_task(ballot(own)) for _ in range((before - waiting) * judged)]
        clock.now += SPAN
    return refused, ballots


async def ballot(own: RecordedAsking) -> Votes:
    # A key of its own, so that what is lent for a minute only plays no part.
    judge = JudgeRole(api_key="sk-judge")  # type: ignore[arg-type]
    (votes,) = await own.ask(BALLOT, judge=judge, caller=LATER)
    assert isinstance(votes, Votes)
    return votes


async def test_clients_are_refused_no_more_often_for_votes(upstream: ScriptedUpstream) -> None:
    clock = Clock()
    server = Limited(upstream, clock)
    async with asking(upstream.base_url, clock=clock) as own:
        off, _ = await served(own, clock, judged=False)
    clock = Clock()
    server = Limited(upstream, clock)
    async with asking(upstream.base_url, clock=clock) as own:
        on, ballots = await served(own, clock, judged=True)
        assert on == off > 0
        assert set(server.asked) == {"client"}
        server.limit = 1_000_000
        clock.now += SPAN + GRACE
        await wave(own, 0)
        votes = await asyncio.gather(*ballots)
    assert [each.votes for each in votes] == [(Vote(True, "r"),) * 3] * CLIENTS
