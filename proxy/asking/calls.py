"""One question to one server, through the dispatcher (`dispatch`); failures are results.

A server that refuses `max_completion_tokens` gets `max_tokens` from then on.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.asking.answers import Completion, read_completion
from proxy.asking.dispatch import Dispatcher, fetch_reply
from proxy.asking.lanes import PREEMPTED, Lane
from proxy.asking.questions import NEW_LIMIT, OLD_LIMIT, Caller, ModelCall, headers_for
from proxy.runtime.lru import Lru
from proxy.upstream import Upstream
from strategies.core.effects import Failure

LIMIT_REFUSED = "limit-refused"
BYTES_PER_TOKEN = 4  # roughly, for calls whose server never says what they cost
_COUNTED_FAILURES = ("timeout", "unreadable")
"""Failures of calls whose prompt the server has probably read."""
MAX_LIMITS = 256  # servers and models whose limit is remembered: clients name models as they like


@dataclass(slots=True)
class Account:
    """What several calls for one purpose have cost.

    A call is charged by the length of its prompt when it begins, and by the server's usage once it has ended. A call
    that was abandoned, or whose answer came too late or was unreadable, stays charged; one that the server refused
    does not.
    """

    calls: int = 0
    """How many calls were begun."""
    tokens: int = 0
    """Tokens of their prompts and answers."""

    def begin(self, expected: int) -> None:
        """Charges a call whose prompt has about `expected` tokens."""
        self.calls += 1
        self.tokens += expected

    def end(self, expected: int, result: Completion | Failure) -> None:
        """Corrects the charge of a call by its result."""
        if isinstance(result, Failure):
            self.tokens -= 0 if result.reason in _COUNTED_FAILURES else expected
        elif result.tokens:
            self.tokens += result.tokens - expected


class Calls:
    """Puts questions to models; one per app."""

    def __init__(self, upstream: Upstream, dispatcher: Dispatcher) -> None:
        self._upstream = upstream
        self._dispatcher = dispatcher
        self._limits: Lru[tuple[str, str], str] = Lru(MAX_LIMITS)

    async def ask(self, question: ModelCall, caller: Caller) -> Completion | Failure:
        """The answer to a question.

        It is asked again where the server knows the old limit only, or where the call was broken off for a client.
        """
        deadline, account = self._dispatcher.deadline(question.model, caller), Account()
        while True:
            result = await self._once(question, caller, deadline, account)
            if not (isinstance(result, Failure) and result.reason in (LIMIT_REFUSED, PREEMPTED)):
                return result

    async def ask_once(self, question: ModelCall, caller: Caller, account: Account) -> Completion | Failure:
        """The result of at most one call, which is counted in the account before it is made."""
        return await self._once(question, caller, self._dispatcher.deadline(question.model, caller), account)

    async def _once(
        self, question: ModelCall, caller: Caller, deadline: float, account: Account
    ) -> Completion | Failure:
        async def call(lane: Lane) -> Completion | Failure:
            limit = self._limit(question, caller)
            data = question.body(caller, limit)
            expected = len(data) // BYTES_PER_TOKEN
            account.begin(expected)
            result = await self._send(question, caller, lane, data, limit)
            account.end(expected, result)
            return result

        return await self._dispatcher.dispatch(question.role, question.model, caller, deadline, call)

    async def _send(
        self, question: ModelCall, caller: Caller, lane: Lane, data: bytes, limit: str
    ) -> Completion | Failure:
        model = question.model
        sending = self._upstream.ask(model.base_url, headers_for(model, caller), data, model.timeout)
        reply = await fetch_reply(sending, model.timeout, caller, lane)
        if isinstance(reply, Failure):
            return reply
        if reply.status == 400 and limit == NEW_LIMIT and NEW_LIMIT.encode() in reply.body:
            self._limits.put(self._limit_key(question, caller), OLD_LIMIT)
            return Failure(LIMIT_REFUSED)
        return read_completion(reply)

    def _limit(self, question: ModelCall, caller: Caller) -> str:
        known = caller.profile.token_limit if question.model.base_url is None else None
        return self._limits.get(self._limit_key(question, caller)) or known or NEW_LIMIT

    def _limit_key(self, question: ModelCall, caller: Caller) -> tuple[str, str]:
        """The key under which a limit is remembered: the server and the model."""
        return self._upstream.server(question.model.base_url), question.model.model or caller.model
