"""Asks for votes until their outcome is decided; `strategies.core.ballot` says which votes count and what decides.

The votes of one round are asked for at the same time. As soon as the outcome is decided, calls that are still running
are cancelled, which closes their connections. A call that failed is a vote that does not count, and is not replaced by
another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from proxy.asking.answers import Completion
from proxy.asking.calls import Account, Calls
from proxy.asking.dispatch import EXPIRED, NOT_ACCEPTED
from proxy.asking.lanes import PAUSED
from proxy.asking.questions import Caller, Roles, vote_question
from strategies.core.ballot import Polls, read_vote
from strategies.core.effects import Answer, Ballot, Failure, Vote, Votes

Cast = Callable[[int], Awaitable[list[Vote]]]

# If a call cannot be begun for one of these reasons, neither can the next.
_HOPELESS = (PAUSED, EXPIRED, NOT_ACCEPTED)


async def poll(ballot: Ballot, roles: Roles, caller: Caller, calls: Calls) -> Votes:
    """The votes that came before the outcome was decided, or before the attempts were used up."""
    account = Account()

    async def cast(n: int) -> list[Vote]:
        return _votes_in(await calls.ask_once(vote_question(ballot, roles, n), caller, account), n)

    polls = Polls(ballot.k, ballot.max_attempts)
    while (wanted := polls.start_calls()) and not any(each.error in _HOPELESS for each in polls.votes):
        if ballot.at_once:
            for each in await cast(wanted):
                polls.add_vote(each)
        else:
            await _one_round(wanted, cast, polls)
    return Votes(tuple(polls.votes), account.calls, account.tokens)


async def _one_round(wanted: int, cast: Cast, polls: Polls) -> None:
    """Takes votes in the order in which they come, until the outcome is decided."""
    ended: asyncio.Queue[asyncio.Task[list[Vote]]] = asyncio.Queue()
    tasks = [asyncio.ensure_future(cast(1)) for _ in range(wanted)]
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    try:
        for _ in tasks:
            for each in (await ended.get()).result():
                polls.add_vote(each)
            if polls.is_decided:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _votes_in(reply: Completion | Failure, n: int) -> list[Vote]:
    """The `n` votes of one call; those that are missing or unreadable do not count."""
    if isinstance(reply, Failure):
        return [Vote(None, error=reply.reason)] * n
    votes = [read_vote(each.text) if isinstance(each, Answer) else _uncounted(each) for each in reply.answers[:n]]
    return votes + [Vote(None, error="not-given")] * (n - len(votes))


def _uncounted(failure: Failure) -> Vote:
    return Vote(None, error=failure.reason)
