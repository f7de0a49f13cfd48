"""Ways: how every call of ours reaches its server, whatever it asks: in its lane, its credential's time and its own.

A caller's credential goes to no other address than its request did, and in the background it is used for
`CREDENTIAL_LIFE` seconds only. What a server answers tells its lane how much it bears.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple, Protocol, TypeVar

from proxy.asking.lanes import Held, Lane, Lanes
from proxy.asking.questions import Caller, headers_for, is_lent
from proxy.errors import UpstreamUnavailable
from proxy.settings.tables import ModelRole
from proxy.upstream import JsonReply, Upstream
from strategies.core.effects import Failure

CREDENTIAL_LIFE = 60.0  # seconds after its own request
EXPIRED = "expired"

_REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class Call(NamedTuple):
    """One call as it ended: `failure` is empty, or one kebab-case word that says what went wrong; `tokens` in all."""

    role: str
    background: bool
    failure: str
    tokens: int


class Billed(Protocol):
    """What came of a call, with the tokens that it cost."""

    @property
    def tokens(self) -> int:
        """All tokens of the call; 0 where the server does not tell."""
        ...


B = TypeVar("B", bound=Billed)


class Ways:
    """The ways to all servers; one per app. `told` is given every call when it has ended.

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

    def deadline(self, model: ModelRole, caller: Caller) -> float:
        """Until when, on the clock, a call in the background that is wanted now may wait for its turn."""
        return caller.asked_at + CREDENTIAL_LIFE if self._is_lent(model, caller) else self._clock() + model.timeout

    async def taken(
        self,
        role: str,
        model: ModelRole,
        caller: Caller,
        deadline: float,
        call: Callable[[Lane], Awaitable[B | Failure]],
    ) -> B | Failure:
        """What comes of a call, which is made once it has its turn; a failure where it gets none until the deadline."""
        lane = self._lanes.to(self._upstream.server(model.base_url))
        try:
            self._check_credential(model, caller)
            async with _turn(lane, caller, deadline):
                self._check_credential(model, caller)
                return await self._told_of(role, caller, call(lane))
        except Held as held:
            return Failure(held.reason)

    async def _told_of(self, role: str, caller: Caller, call: Awaitable[B | Failure]) -> B | Failure:
        failure, tokens = "cancelled", 0
        try:
            found = await call
            failure, tokens = (found.reason, 0) if isinstance(found, Failure) else ("", found.tokens)
            return found
        finally:
            if self._told is not None:
                self._told(Call(role, caller.background, failure, tokens))

    def _is_lent(self, model: ModelRole, caller: Caller) -> bool:
        return not self._own_key and is_lent(headers_for(model, caller), model)

    def _check_credential(self, model: ModelRole, caller: Caller) -> None:
        """Raises `Held` where a caller's credential is no longer ours to use."""
        if caller.background and self._is_lent(model, caller) and self._clock() > caller.asked_at + CREDENTIAL_LIFE:
            raise Held(EXPIRED)


async def replied(sending: Awaitable[JsonReply], timeout: float, caller: Caller, lane: Lane) -> JsonReply | Failure:
    """What a server replies within so many seconds, of which its lane is told."""
    try:
        async with asyncio.timeout(timeout):
            reply = await sending
    except TimeoutError:
        return Failure("timeout")
    except UpstreamUnavailable as error:
        return Failure("timeout" if error.code == "upstream_timeout" else "unreachable")
    if reply.status in _REFUSALS:
        lane.refused(reply.retry_after)
    elif caller.background and not is_down(reply.status):
        lane.served()
    return reply


def is_down(status: int) -> bool:
    """Whether a server could not answer this time, as while it loads a model; what it lacks altogether is 501."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED


@asynccontextmanager
async def _turn(lane: Lane, caller: Caller, deadline: float) -> AsyncIterator[None]:
    if caller.background:
        async with lane.background(deadline, caller.mode, caller.waiters):
            yield
    else:
        with lane.foreground():
            yield
