"""Asking: what strategies want of models, from the models that the settings name for each role.

questions   what a call says, to whom, with whose credential
answers     what a completion says
crowd       whether many clients have come at once
lanes       when a call that nobody waits for may be made
ways        how every call reaches its server: in its lane, its credential's time and its own
calls       one question to one server, failures as results
ballots     votes until their outcome stands
embeddings  the vectors of texts
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from proxy.asking.ballots import poll
from proxy.asking.calls import Calls
from proxy.asking.embeddings import Embedded, Embeddings
from proxy.asking.lanes import Lane, Lanes
from proxy.asking.questions import Caller, Roles, question
from proxy.asking.ways import Call, Ways
from proxy.settings.tables import BackgroundSettings, ModelRole
from proxy.upstream import Upstream
from strategies.core.effects import Ask, Effect, Failure, Result

__all__ = ["Asking", "Call", "Caller", "Resolver", "Roles"]


class Resolver(Protocol):
    """Who resolves effects."""

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """One result for each effect; failures are results too."""
        ...


class Asking:
    """Asks models; one per app. `told` is given every call when it has ended.

    `clock` gives seconds since the epoch. `own_key`: requests go out with the operator's key instead of the caller's.
    `serial` says whether the upstream is known to do one thing at a time.
    """

    def __init__(
        self,
        upstream: Upstream,
        background: BackgroundSettings | None = None,
        *,
        own_key: bool = False,
        clock: Callable[[], float] = time.time,
        told: Callable[[Call], None] | None = None,
        serial: Callable[[], bool] = lambda: False,
    ) -> None:
        self._upstream = upstream
        own = upstream.server(None)
        self._lanes = Lanes(background or BackgroundSettings(), clock, lambda server: server == own and serial())
        self._own = self._lanes.to(own)
        ways = Ways(upstream, self._lanes, clock, told, own_key)
        self._calls = Calls(upstream, ways)
        self._embeddings = Embeddings(upstream, ways)

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """One result for each effect, all asked for at the same time; failures are results too.

        Failures: `timeout`, `unreachable`, `rate-limited`, `http-error`, `unreadable`; in the background also `paused`,
        where a call did not get its turn in time, and `expired`, where the caller's credential was too old by then.
        """
        return tuple(await asyncio.gather(*(self._one(effect, roles, caller) for effect in effects)))

    async def embedded(self, texts: Sequence[str], role: ModelRole, caller: Caller) -> Embedded | Failure:
        """The vectors of texts, from the model of a role.

        Failures are those of `resolve`; `server-error` where the server cannot answer now, as while it loads the model.
        """
        return await self._embeddings.of(texts, role, caller)

    def arrived(self) -> None:
        """A client's request for the upstream has come."""
        self._own.arrived()

    def foreground(self, base_url: str | None = None) -> AbstractContextManager[None]:
        """Holds while a client's request to a server is under way, by default to the upstream itself."""
        return self._lane(base_url).foreground()

    def refused(self, base_url: str | None, retry_after: str | None) -> None:
        """A client's request got 429 or 503, with this `Retry-After`; None stands for the upstream itself."""
        self._lane(base_url).refused(retry_after)

    def _lane(self, base_url: str | None) -> Lane:
        return self._lanes.to(self._upstream.server(base_url)) if base_url else self._own

    async def _one(self, effect: Effect, roles: Roles, caller: Caller) -> Result:
        if not isinstance(effect, Ask):
            return await poll(effect, roles, caller, self._calls)
        found = await self._calls.answered(question(effect, roles, caller), caller)
        return found if isinstance(found, Failure) else found.answers[0]
