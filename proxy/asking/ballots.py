"""Ballots: votes asked for until their outcome stands. What counts and what decides is `strategies.core.ballot`.

The votes of one round are asked for at the same time. As soon as the outcome stands, calls that still run are
cancelled, which closes their connections. A call that failed is a vote that does not count; nobody else is asked in
its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from proxy.asking.answers import Completion
from proxy.asking.calls import Account, Calls
from proxy.asking.lanes import PAUSED
from proxy.asking.questions import Caller, Roles, vote
from proxy.asking.ways import EXPIRED
from strategies.core.ballot import Polls, read_vote
from strategies.core.effects import Answer, Ballot, Failure, Vote, Votes

Cast = Callable[[int], Awaitable[list[Vote]]]

# Once a call could not be begun for one of these reasons, neither could the next.
_HOPELESS = (PAUSED, EXPIRED)


async def poll(ballot: Ballot, roles: Roles, caller: Caller, calls: Calls) -> Votes:
    """The votes that came before the outcome stood, or before the attempts were used up."""
    account = Account()

    async def cast(n: int) -> list[Vote]:
        return _votes(await calls.once(vote(ballot, roles, n), caller, account), n)

    polls = Polls(ballot.k, ballot.max_attempts)
    while (wanted := polls.starts()) and not any(each.error in _HOPELESS for each in polls.votes):
        if ballot.at_once:
            for each in await cast(wanted):
                polls.take(each)
        else:
            await _one_round(wanted, cast, polls)
    return Votes(tuple(polls.votes), account.calls, account.tokens)


async def _one_round(wanted: int, cast: Cast, polls: Polls) -> None:
    """Takes votes in the order in which they come, until the outcome stands."""
    ended: asyncio.Queue[asyncio.Task[list[Vote]]] = asyncio.Queue()
    tasks = [asyncio.ensure_future(cast(1)) for _ in range(wanted)]
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    try:
        for _ in tasks:
            for each in (await ended.get()).result():
                polls.take(each)
            if polls.decided:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _votes(found: Completion | Failure, n: int) -> list[Vote]:
    """The `n` votes of one call; what it does not hold are votes that do not count."""
    if isinstance(found, Failure):
        return [Vote(None, error=found.reason)] * n
    votes = [read_vote(each.text) if isinstance(each, Answer) else _uncounted(each) for each in found.answers[:n]]
    return votes + [Vote(None, error="not-given")] * (n - len(votes))


def _uncounted(failure: Failure) -> Vote:
    return Vote(None, error=failure.reason)
