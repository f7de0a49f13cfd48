"""Calls: one question to one server, within its time, its lane and its credential's time; failures are results.

A server that refuses `max_completion_tokens` is asked with `max_tokens` from then on. A caller's credential goes to no
other address than its request did, and in the background it is used for `CREDENTIAL_LIFE` seconds only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from proxy.asking.answers import Completion, read
from proxy.asking.lanes import PREEMPTED, Held, Lane, Lanes
from proxy.asking.questions import NEW_LIMIT, OLD_LIMIT, Caller, Question, headers_for, is_lent
from proxy.errors import UpstreamUnavailable
from proxy.lru import Lru
from proxy.setting_tables import ModelRole
from proxy.upstream import JsonReply, Upstream
from strategies.core.effects import Failure

CREDENTIAL_LIFE = 60.0  # seconds after its own request
EXPIRED = "expired"
LIMIT_REFUSED = "limit-refused"
MOST_LIMITS = 256  # servers and models whose limit is remembered: clients name models as they like

_REFUSALS = (429, 503)


class Call(NamedTuple):
    """One call as it ended: `failure` is empty, or one kebab-case word that says what went wrong; `tokens` in all."""

    role: str
    background: bool
    failure: str
    tokens: int


@dataclass(slots=True)
class Account:
    """What was spent on several calls for one thing: how many reached for the network, and their tokens."""

    calls: int = 0
    tokens: int = 0


class Calls:
    """Makes calls; one per app. `told` is given every call when it has ended.

    `own_key`: requests go out with the operator's key, so no credential is a caller's.
    """

    def __init__(
        self,
        upstream: Upstream,
        lanes: Lanes,
        clock: Callable[[], float],
        told: Callable[[Call], None] | None,
        own_key: bool,
    ) -> None:
        self._upstream = upstream
        self._lanes = lanes
        self._clock = clock
        self._told = told
        self._own_key = own_key
        self._limits: Lru[tuple[str, str], str] = Lru(MOST_LIMITS)

    async def answered(self, question: Question, caller: Caller) -> Completion | Failure:
        """The answer to a question, asked again where the server knows the old limit only, or a client came first."""
        deadline, account = self.deadline(question, caller), Account()
        while True:
            found = await self.once(question, caller, deadline, account)
            if not (isinstance(found, Failure) and found.reason in (LIMIT_REFUSED, PREEMPTED)):
                return found

    def deadline(self, question: Question, caller: Caller) -> float:
        """Until when, on the clock, a call in the background that is wanted now may wait for its turn."""
        if self._is_lent(question.model, caller):
            return caller.asked_at + CREDENTIAL_LIFE
        return self._clock() + question.model.timeout

    async def once(self, question: Question, caller: Caller, deadline: float, account: Account) -> Completion | Failure:
        """What comes of one call at most. The account has it before it is made."""
        lane = self._lanes.to(self._upstream.server(question.model.base_url))
        try:
            self._check_credential(question.model, caller)
            async with _turn(lane, caller, deadline):
                self._check_credential(question.model, caller)
                account.calls += 1
                found = await self._told_of(question, caller, lane)
        except Held as held:
            return Failure(held.reason)
        if isinstance(found, Completion):
            account.tokens += found.tokens
        return found

    async def _told_of(self, question: Question, caller: Caller, lane: Lane) -> Completion | Failure:
        failure, tokens = "cancelled", 0
        try:
            found = await self._made(question, caller, lane)
            failure, tokens = (found.reason, 0) if isinstance(found, Failure) else ("", found.tokens)
            return found
        finally:
            if self._told is not None:
                self._told(Call(question.role, caller.background, failure, tokens))

    async def _made(self, question: Question, caller: Caller, lane: Lane) -> Completion | Failure:
        try:
            async with asyncio.timeout(question.model.timeout):
                reply, limit = await self._sent(question, caller)
        except TimeoutError:
            return Failure("timeout")
        except UpstreamUnavailable as error:
            return Failure("timeout" if error.code == "upstream_timeout" else "unreachable")
        if reply.status in _REFUSALS:
            lane.refused(reply.retry_after)
        elif caller.background:
            lane.served()
        if reply.status == 400 and limit == NEW_LIMIT and NEW_LIMIT.encode() in reply.body:
            self._limits.put(self._of(question, caller), OLD_LIMIT)
            return Failure(LIMIT_REFUSED)
        return read(reply)

    async def _sent(self, question: Question, caller: Caller) -> tuple[JsonReply, str]:
        role = question.model
        known = caller.profile.token_limit if role.base_url is None else None
        limit = self._limits.get(self._of(question, caller)) or known or NEW_LIMIT
        data = question.body(caller, limit)
        return await self._upstream.ask(role.base_url, headers_for(role, caller), data, role.timeout), limit

    def _of(self, question: Question, caller: Caller) -> tuple[str, str]:
        """What a limit is remembered by: the server and the model."""
        return self._upstream.server(question.model.base_url), question.model.model or caller.model

    def _is_lent(self, role: ModelRole, caller: Caller) -> bool:
        return not self._own_key and is_lent(headers_for(role, caller), role)

    def _check_credential(self, role: ModelRole, caller: Caller) -> None:
        """Raises `Held` where a caller's credential is no longer ours to use."""
        if caller.background and self._is_lent(role, caller) and self._clock() > caller.asked_at + CREDENTIAL_LIFE:
            raise Held(EXPIRED)


@asynccontextmanager
async def _turn(lane: Lane, caller: Caller, deadline: float) -> AsyncIterator[None]:
    if caller.background:
        async with lane.background(deadline, caller.mode, caller.waiters):
            yield
    else:
        with lane.foreground():
            yield
