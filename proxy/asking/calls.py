"""Calls: one question to one server, on its way there (`ways`); failures are results.

A server that refuses `max_completion_tokens` is asked with `max_tokens` from then on.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.asking.answers import Completion, read
from proxy.asking.lanes import PREEMPTED, Lane
from proxy.asking.questions import NEW_LIMIT, OLD_LIMIT, Caller, Question, headers_for
from proxy.asking.ways import Ways, replied
from proxy.runtime.lru import Lru
from proxy.upstream import Upstream
from strategies.core.effects import Failure

LIMIT_REFUSED = "limit-refused"
MOST_LIMITS = 256  # servers and models whose limit is remembered: clients name models as they like


@dataclass(slots=True)
class Account:
    """What was spent on several calls for one thing: how many reached for the network, and their tokens."""

    calls: int = 0
    tokens: int = 0


class Calls:
    """Makes calls; one per app."""

    def __init__(self, upstream: Upstream, ways: Ways) -> None:
        self._upstream = upstream
        self._ways = ways
        self._limits: Lru[tuple[str, str], str] = Lru(MOST_LIMITS)

    async def answered(self, question: Question, caller: Caller) -> Completion | Failure:
        """The answer to a question, asked again where the server knows the old limit only, or a client came first."""
        deadline, account = self._ways.deadline(question.model, caller), Account()
        while True:
            found = await self._once(question, caller, deadline, account)
            if not (isinstance(found, Failure) and found.reason in (LIMIT_REFUSED, PREEMPTED)):
                return found

    async def once(self, question: Question, caller: Caller, account: Account) -> Completion | Failure:
        """What comes of one call at most. The account has it before it is made."""
        return await self._once(question, caller, self._ways.deadline(question.model, caller), account)

    async def _once(
        self, question: Question, caller: Caller, deadline: float, account: Account
    ) -> Completion | Failure:
        async def call(lane: Lane) -> Completion | Failure:
            account.calls += 1
            return await self._made(question, caller, lane)

        found = await self._ways.taken(question.role, question.model, caller, deadline, call)
        if isinstance(found, Completion):
            account.tokens += found.tokens
        return found

    async def _made(self, question: Question, caller: Caller, lane: Lane) -> Completion | Failure:
        model, limit = question.model, self._limit(question, caller)
        data = question.body(caller, limit)
        sending = self._upstream.ask(model.base_url, headers_for(model, caller), data, model.timeout)
        reply = await replied(sending, model.timeout, caller, lane)
        if isinstance(reply, Failure):
            return reply
        if reply.status == 400 and limit == NEW_LIMIT and NEW_LIMIT.encode() in reply.body:
            self._limits.put(self._of(question, caller), OLD_LIMIT)
            return Failure(LIMIT_REFUSED)
        return read(reply)

    def _limit(self, question: Question, caller: Caller) -> str:
        known = caller.profile.token_limit if question.model.base_url is None else None
        return self._limits.get(self._of(question, caller)) or known or NEW_LIMIT

    def _of(self, question: Question, caller: Caller) -> tuple[str, str]:
        """What a limit is remembered by: the server and the model."""
        return self._upstream.server(question.model.base_url), question.model.model or caller.model
