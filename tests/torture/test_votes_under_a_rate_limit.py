"""A thousand conversations at once before an upstream that limits its rate: votes refuse no client.

The server takes a number of requests in each span of the clock, which the test moves. Clients that were refused come
back when they were told to, all at once.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply, completion, error
from tests.support.stage import body_of, chat, controls, is_own, summary, vote
from tests.support.upstream import ScriptedUpstream

CONVERSATIONS, LIMIT, SPAN, WINDOW = 1_000, 200, 5, 16_384
BOUND = 120.0
BODY = body_of(chat(6))
TASK = b"Plan my garden."

pytestmark = [pytest.mark.torture, pytest.mark.timeout(300)]


class Limited:
    """Takes `limit` requests in each span of a clock that the test moves, and remembers whether we asked ourselves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.limit = LIMIT
        self.own = 0
        self._taken: Counter[float] = Counter()

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def answer(self, exchange: Exchange) -> Reply:
        """A reply, or 429 beyond the limit."""
        self.own += is_own(exchange)
        self._taken[self.now // SPAN] += 1
        if self._taken[self.now // SPAN] > self.limit:
            return error(429, headers=[("retry-after", str(SPAN))])
        if is_own(exchange):
            return vote("NO") if "vote" in str(exchange.json()["messages"][0]) else summary()
        return completion("yes")


@contextmanager
def limited(strategy: str) -> Iterator[tuple[Limited, Proxy]]:
    server = Limited()
    with ScriptedUpstream() as upstream:
        upstream.answer(server.answer)
        with running_proxy(upstream.url, clock=server.clock, window=WINDOW, strategy=strategy) as proxy:
            yield server, proxy


async def refusals(proxy: Proxy, server: Limited) -> int:
    """How often clients get 429 until each conversation has its reply."""
    times, waiting = 0, list(range(CONVERSATIONS))
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(timeout=BOUND, limits=limits) as client:
        while waiting:
            statuses = await asyncio.gather(*(ask(client, proxy, each) for each in waiting))
            waiting = [each for each, status in zip(waiting, statuses, strict=True) if status == 429]
            times += len(waiting)
            server.now += SPAN
    return times


async def ask(client: httpx.AsyncClient, proxy: Proxy, conversation: int) -> int:
    headers = [
        *controls(session=f"c{conversation}"),
        ("authorization", "Bearer k"),
        ("content-type", "application/json"),
    ]
    # A round of votes is held once for a chain, so each conversation has a task of its own.
    body = BODY.replace(TASK, TASK + b" No. %d." % conversation)
    return (await client.post(proxy.url + CHAT, content=body, headers=headers)).status_code


def test_clients_are_refused_no_more_often_for_votes() -> None:
    with limited("off") as (server, proxy):
        without = asyncio.run(refusals(proxy, server))
    with limited("dynacontext") as (server, proxy):
        assert asyncio.run(refusals(proxy, server)) == without > CONVERSATIONS
        assert server.own == 0
        server.limit = 1_000_000
        server.now += SPAN * 2
        asyncio.run(refusals(proxy, server))
        proxy.quiet(BOUND)
        assert server.own >= 3 * CONVERSATIONS
